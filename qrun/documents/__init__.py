"""The results of commands as records: their fields are the keys of the JSON documents that qrun writes and reads back.

May be imported by everything above `running`. It knows how a record becomes JSON and how untrusted JSON becomes a
record; it knows no command, no screen and no file but JSON files.
"""
