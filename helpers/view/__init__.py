"""How results look: tables, figures and explorers. Nothing here decides anything."""
