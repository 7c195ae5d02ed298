"""A problem of your own: any function of x and a device that returns a number.

What happens inside is nobody's business: here a small simulation of a heater, whose thermostat
each device wants tuned to its own building. No gradients, no data that leave it.
"""

from fedzo.problems import FunctionObjective


def comfort(x, device):
    """Return how badly gains x = (proportional, integral) keep a building at 20 degrees."""
    leak = 0.05 + 0.02 * device  # each device's building is its own
    temperature, total, cost = 15.0, 0.0, 0.0
    for _ in range(60):
        error = 20.0 - temperature
        total += error
        heat = min(max(x[0] * error + 0.01 * x[1] * total, 0.0), 5.0)
        temperature += heat - leak * (temperature - 10.0)
        cost += error**2 + 0.1 * heat**2
    return cost / 60


def problem(devices: int = 3) -> FunctionObjective:
    """Make the problem: two numbers to tune, one building for each device."""
    return FunctionObjective(comfort, dim=2, devices=devices)
