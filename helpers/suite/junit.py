"""junit.xml: a suite a notebook and a case a check, for the CI systems that show it."""

import re
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

TAGS = {"fail": "failure", "error": "error", "not_run": "skipped", "known_bad": "skipped", "not_reached": "skipped"}
# What XML 1.0 cannot hold even escaped; names in a checkpoint may.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(notebooks: Iterable[Mapping]) -> bytes:
    root = ElementTree.Element("testsuites", name="nvfp4-moe-validation")
    for notebook in notebooks:
        _suite(root, notebook)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _suite(root: ElementTree.Element, notebook: Mapping) -> None:
    cases = [(check["id"], check["state"], f"{check['why']} {check['remedy']}".strip()) for check in notebook["checks"]]
    if notebook["state"] not in ("pass", "fail"):
        # What ended the notebook is a case of its own: no check stands for a killed kernel.
        cases.append(("notebook", "error", f"{notebook['state']}: {notebook['reason']}"))
    kinds = [TAGS.get(state) for _, state, _ in cases]
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=notebook["name"],
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
        time=str(notebook["seconds"]),
    )
    for name, state, message in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=notebook["name"], name=_legal(name))
        if state in TAGS:
            ElementTree.SubElement(case, TAGS[state], message=_legal(f"{state}: {message}"))


def _legal(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)
