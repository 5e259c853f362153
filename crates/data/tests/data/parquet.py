"""Writes the Parquet files of the tests, with pandas and pyarrow: python parquet.py

One table as CSV, and in each compression that is read; and a file that is no table.
"""
from datetime import date, datetime
from decimal import Decimal

import pandas
import pyarrow
from pyarrow import parquet

rows = 12
frame = pandas.DataFrame({
    "age": pandas.array([None if row % 5 == 3 else 20 + 3 * row for row in range(rows)], dtype="Int64"),
    "pressure": [None if row == 4 else 110.5 + row / 8 for row in range(rows)],
    "smokes": [None if row == 7 else row % 3 == 0 for row in range(rows)],
    "pain": pandas.Categorical(["none" if row % 2 else 'a "sharp", one' for row in range(rows)]),
    "day": [date(2024, 5, 1 + row) for row in range(rows)],
    "seen": [datetime(2024, 5, 1, row, 30) for row in range(rows)],
    "dose": [Decimal(row) / 4 for row in range(rows)],
    "visits": [Decimal(row) for row in range(rows)],
    "label": ["sick" if row % 3 == 0 else "healthy" for row in range(rows)],
}, index=[f"patient {row}" for row in range(rows)])
table = pyarrow.Table.from_pandas(frame)
for codec in ["none", "snappy", "zstd", "gzip", "lz4"]:
    parquet.write_table(table, f"clinic-{codec}.parquet", compression=codec, row_group_size=5, write_statistics=False)
frame.to_csv("clinic.csv", index=False)
patients = pyarrow.table({"smokes": [False, False], "age": [30.0, 70.0]})
parquet.write_table(patients, "patients.parquet")
lists = pyarrow.table({"values": [[1, 2], [3]], "label": ["a", "b"]})
parquet.write_table(lists, "lists.parquet")
