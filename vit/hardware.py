"""What this machine is."""

import platform


def cpu_name() -> str:
    """The processor's name as the system gives it, such as 'AMD EPYC 9V74 80-Core Processor'."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
