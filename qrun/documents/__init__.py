"""What commands answer, as records: their fields are the keys of the JSON documents,
and what is read back from saved ones.

May be imported by everything above `running`. Knows how a record becomes JSON and how JSON that nobody vouches for
becomes a record; knows no command, no screen and no file but those of JSON.
"""
