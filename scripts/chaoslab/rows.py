"""Rows of the table: what was measured, beside its goal."""
import collections

from chaoslab.federation import NEVER


class Row(collections.namedtuple("Row", "what value low high note", defaults=[""])):
    """What was measured, and between which bounds it should be: seconds if they are floats, else a number."""

    @property
    def ok(self):
        return self.low <= self.value <= self.high

    @property
    def measured(self):
        text = str(self.value) if isinstance(self.high, int) else f"{self.value:.1f} s" if self.value < NEVER else "never"
        return text + (f" ({self.note})" if self.note else "")

    @property
    def goal(self):
        if not isinstance(self.high, int):
            return f"at most {self.high:.1f} s"
        return str(self.high) if self.low == self.high else f"{self.low} to {self.high}"

    def told(self):
        value = self.value if self.value < NEVER else None
        return {"what": self.what, "measured": value, "at_least": self.low, "at_most": self.high,
                "unit": "" if isinstance(self.high, int) else "s", "note": self.note, "ok": self.ok}


def at_most(what, seconds, bound, note=""):
    return Row(what, float(seconds), 0.0, float(bound), note)


def exactly(what, number, wanted=0, note=""):
    return Row(what, number, wanted, wanted, note)


def print_table(results):
    """Prints the rows of scenarios by name. A text in the place of rows says why a scenario was skipped."""
    print("| scenario | what | measured | goal | |\n|---|---|---|---|---|")
    for name, rows in results.items():
        if isinstance(rows, str):
            print(f"| {name} | skipped: {rows} | | | |")
            continue
        for row in rows:
            print(f"| {name} | {row.what} | {row.measured} | {row.goal} | {'ok' if row.ok else 'MISSED'} |")


def as_json(rows):
    if isinstance(rows, str):
        return {"skipped": rows, "rows": []}
    return {"skipped": None, "rows": [row.told() for row in rows]}
