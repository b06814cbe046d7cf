"""The one exception whose message is meant for the person at the keyboard."""


class UserError(Exception):
    """Bad input: one sentence that says what is wrong, where, and what would be right.

    The command line prints it without a traceback and exits with code 2.
    """
