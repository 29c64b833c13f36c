"""SGLang's decisions as a readable, release-aware model: detect, admit, route, load. Every rule names its release and function."""
