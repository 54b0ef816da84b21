# shellcheck shell=bash
# Sourced by the other scripts: where the project is, which Python and which Java it uses.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"
PYTHON_VENV="$VENV/bin/python"
export ROOT VENV PYTHON_VENV

# Spark's workers take `python3` from PATH unless set otherwise.
export PYSPARK_PYTHON="$PYTHON_VENV"
export PYSPARK_DRIVER_PYTHON="$PYTHON_VENV"
# A Spark installation named in the environment would be used in place of the pinned one.
unset SPARK_HOME SPARK_CONF_DIR PYSPARK_SUBMIT_ARGS PYTHONPATH
# Spark starts a Python process per query and more: without compiled modules each compiles the whole project.
unset PYTHONDONTWRITEBYTECODE

# Succeeds if $1 is a `java` of a full JDK 17 or 21: Spark needs a module that reduced ones lack.
java_fits() {
    local said modules
    said="$("$1" -XshowSettings:properties -version 2>&1 </dev/null)" || return 1
    case "$said" in
        *'java.specification.version = 17'* | *'java.specification.version = 21'*) ;;
        *) return 1 ;;
    esac
    # Not through a pipe: `grep -q` stops reading, which would look like a failure of java.
    modules="$("$1" --list-modules 2>/dev/null </dev/null)" || return 1
    case "$modules" in *jdk.incubator.vector@*) ;; *) return 1 ;; esac
}

# Sets JAVA_HOME to a JDK that fits: the one chosen already, the one in PATH, or one the system has.
find_java() {
    if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && java_fits "$JAVA_HOME/bin/java"; then
        export JAVA_HOME
        return 0
    fi
    local found home
    found="$(command -v java || true)"
    if [ -n "$found" ] && java_fits "$found"; then
        unset JAVA_HOME # Spark takes the java in PATH
        return 0
    fi
    for home in /usr/lib/jvm/* /opt/java/* /opt/jdk* /Library/Java/JavaVirtualMachines/*/Contents/Home; do
        if [ -x "$home/bin/java" ] && java_fits "$home/bin/java"; then
            export JAVA_HOME="$home"
            return 0
        fi
    done
    return 1
}
