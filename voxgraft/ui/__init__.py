"""The web interface: the same verbs in a browser. It owns no logic and no state; only `app` and below need gradio."""
