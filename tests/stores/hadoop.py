"""Spark's own reading and writing over S3: the JARs, which Spark downloads when they are first asked for, and settings.

Hadoop's connector asks for all of Amazon's Java SDK, 600 MB. The modules that it uses are 19 MB with what they need.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.stores.servers import CACHE, REGION, MissingError, alone

# The one that the connector was built with: `aws-java-sdk-v2.version` in hadoop-project's POM.
SDK = {"3.5.0": "2.35.4"}
MODULES = ("s3", "s3-transfer-manager", "sts")
GET_S = 1800.0

_DOWNLOAD = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
builder.getOrCreate().stop()
"""


def hadoop_version() -> str:
    """Return the version of the Hadoop in Spark."""
    jars = Path(pyspark.__file__).with_name("jars")
    return next(jars.glob("hadoop-client-api-*.jar")).stem.removeprefix("hadoop-client-api-")


def package_settings() -> dict[str, str]:
    """Return the settings by which Spark downloads what it needs: as docs/how-to/object-stores.md says.

    Raises
    ------
    MissingError
        For a Hadoop whose SDK is not known here.
    """
    version = hadoop_version()
    if version not in SDK:
        raise MissingError(f"no version of Amazon's SDK is known for Hadoop {version}: add it to SDK")
    modules = [f"software.amazon.awssdk:{name}:{SDK[version]}" for name in MODULES]
    return {
        "spark.jars.packages": ",".join([f"org.apache.hadoop:hadoop-aws:{version}", *modules]),
        "spark.jars.excludes": "software.amazon.awssdk:bundle",
    }


def jars() -> str:
    """Return the JARs as `spark.jars` takes them; downloaded the first time, which takes a minute or more.

    Later sessions need not ask the repository, which takes seconds each time.

    Raises
    ------
    MissingError
        If they cannot be had.
    """
    folder = CACHE / f"hadoop-aws-{hadoop_version()}"
    done = folder / "done"
    with alone("hadoop-aws"):
        if not done.exists():
            settings = {**package_settings(), "spark.jars.ivy": str(folder), "spark.ui.enabled": "false"}
            got = subprocess.run(
                [sys.executable, "-c", _DOWNLOAD, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=GET_S,
                check=False,
            )
            if got.returncode != 0:
                raise MissingError(f"Spark could not download hadoop-aws: {got.stderr[-2000:]}")
            done.touch()
    return ",".join(str(path) for path in sorted((folder / "jars").glob("*.jar")))


def s3a_settings(address: str) -> dict[str, str]:
    """Return the settings for a server at an address; credentials come from the environment."""
    names = {"endpoint": f"http://{address}", "endpoint.region": REGION, "path.style.access": "true"}
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in names.items()}


def environment(options: dict[str, str]) -> dict[str, str]:
    """Return storage options as the variables that logs and Hadoop's connector look for."""
    return {name.upper(): value for name, value in options.items()}
