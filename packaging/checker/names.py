"""Answers for the names of services, as the name server of a cluster does: `names.py FILE ADDRESS`.

FILE holds addresses by names, and is read at every question, since pods move. Only questions for IPv4 addresses have an answer.
"""
import json
import pathlib
import socket
import sys

A, IN, TTL = 1, 1, 5
UNKNOWN = 3


def answer(question, known):
    """Returns the answer to one message of the protocol (RFC 1035)."""
    at, labels = 12, []
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode().lower())
        at += 1 + question[at]
    kind = int.from_bytes(question[at + 1:at + 3])
    address = known.get(".".join(labels))
    records = b""
    if address and kind == A:
        # 0xc00c points to the name in the question.
        fields = [0xc00c.to_bytes(2), A.to_bytes(2), IN.to_bytes(2), TTL.to_bytes(4), (4).to_bytes(2)]
        records = b"".join(fields) + socket.inet_aton(address)
    flags = 0x8580 | (0 if address else UNKNOWN)
    counts = [1, 1 if records else 0, 0, 0]
    head = question[:2] + flags.to_bytes(2) + b"".join(count.to_bytes(2) for count in counts)
    return head + question[12:at + 5] + records


def main():
    file, address = sys.argv[1:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            question, asker = server.recvfrom(512)
            server.sendto(answer(question, json.loads(pathlib.Path(file).read_text())), asker)


if __name__ == "__main__":
    main()
