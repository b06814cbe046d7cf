"""The live page itself; its charts are those of reports."""
