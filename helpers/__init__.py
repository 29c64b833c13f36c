"""Will this NVFP4 mixture-of-experts checkpoint serve on this SGLang release, runner and GPU?

Rooms, in the direction of the imports (a test holds it): findings, errors and paths import nothing of ours; `checkpoint`
reads what is on disk; `deployment` is what it is deployed on; `stages` is the readable model of SGLang's decisions;
`sglang` runs the real releases; `suite` and `view` may use all of these.
"""
