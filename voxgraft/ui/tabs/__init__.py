"""The tabs of the web interface, one module each; `app.py` lists them."""
