"""The report of ``qrun conform``: screen, Markdown, JSON, JUnit, SARIF and one HTML page; and the scoreboard."""
