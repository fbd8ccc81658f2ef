"""What the tests know of how much a client sends."""


def numbers_sent(protocol, client, jobs):
    """How many numbers the client's answer to the jobs holds."""
    return sum(protocol.upload_sizes(client, jobs).values())
