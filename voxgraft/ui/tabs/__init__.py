"""The tabs of the web interface; `app.py` lists their builders."""
