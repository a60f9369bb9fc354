"""Makes one self-contained HTML page from the JSON documents of reports."""
