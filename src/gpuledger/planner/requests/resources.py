"""What a training run needs: steps, hours, energy, money, checkpoints, jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...compute.step_time.of_run import StepTime
from ...config.run import Run
from ...errors import InputError
from ...estimate import Estimate
from .options import RequestOptions

HOUR = 3600
JOULES_PER_KWH = 3_600_000
MOST_JOBS = 1000


@dataclass(frozen=True)
class Span:
    """A quantity by the model, and between which values a measured one is to be expected.

    low and high are None where no published step says how far the model is off. They need not
    contain `expected`: a family of GPUs whose steps are read too fast has both above it.
    """

    expected: float
    low: float | None = None
    high: float | None = None

    @property
    def planned(self) -> float:
        """What a request should ask for: the upper end where it is known."""
        return self.expected if self.high is None else max(self.expected, self.high)

    def times(self, factor: float) -> Span:
        """The same range in another unit."""
        return Span(self.expected * factor,
                    None if self.low is None else self.low * factor,
                    None if self.high is None else self.high * factor)


@dataclass(frozen=True)
class Cadence:
    """How often a checkpoint is written, and what it costs. None is what nobody said."""

    interval_seconds: float | None
    steps: int | None
    reason: str
    write_seconds: float | None


@dataclass(frozen=True)
class Resources:
    """All that a proposal asks for. seconds include writing checkpoints and repeating lost work
    as far as the options say how long that takes."""

    gpus: int
    steps: int
    tokens: int
    step_seconds: Span
    training_seconds: Span
    seconds: Span
    gpu_hours: Span
    energy_kwh: Span | None
    cost: Span | None
    weights_bytes: int
    checkpoint_bytes: int
    storage_bytes: int
    cadence: Cadence
    jobs: int
    job_seconds: float


def resources(estimate: Estimate, time: StepTime, options: RequestOptions) -> Resources:
    """The account of a whole training run. [R3] [R4] [R6] [R9]

    Raises InputError where jobs are too short or too many.
    """
    run, error = estimate.run, time.error
    steps = run.training.optimizer_steps(options.tokens)
    step = Span(time.step_seconds, error.low_seconds, error.high_seconds)
    training = step.times(steps)
    checkpoint = estimate.checkpoint
    rhythm = cadence(options, checkpoint.full_bytes, step)
    seconds = training.times(overhead_factor(rhythm, options))
    hours = seconds.times(run.cluster.gpus / HOUR)
    jobs, job_seconds = jobs_of(seconds, rhythm, options)
    return Resources(
        gpus=run.cluster.gpus, steps=steps, tokens=steps * run.training.tokens_per_step,
        step_seconds=step, training_seconds=training, seconds=seconds, gpu_hours=hours,
        energy_kwh=energy_kwh(run, hours, options.pue or 1.0),
        cost=None if options.price_per_gpu_hour is None
        else hours.times(options.price_per_gpu_hour),
        weights_bytes=checkpoint.weights_bytes, checkpoint_bytes=checkpoint.full_bytes,
        storage_bytes=options.kept_checkpoints * checkpoint.full_bytes,
        cadence=rhythm, jobs=jobs, job_seconds=job_seconds)


def energy_kwh(run: Run, gpu_hours: Span, pue: float) -> Span | None:
    """Upper bound: every GPU at its board's power limit all the time; None without a limit. [R5]"""
    watts = run.cluster.gpu.power_watts
    return None if watts is None else gpu_hours.times(watts * pue * HOUR / JOULES_PER_KWH)


def daly_interval_seconds(write_seconds: float, failure_seconds: float) -> float:
    """Seconds of work between two checkpoints that lose the least time. [R7]

    d = write_seconds, M = mean time between failures; the first term is Young's (1974).
    Ref: Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
    Future Generation Computer Systems 22 (2006), equation 37.
    """
    d, M = write_seconds, failure_seconds
    if d >= 2 * M:
        return M
    root = math.sqrt(d / (2 * M))
    return math.sqrt(2 * d * M) * (1 + root / 3 + root * root / 9) - d


def cadence(options: RequestOptions, checkpoint_bytes: int, step: Span) -> Cadence:
    """The interval that was given, or Daly's; its steps are whole and take no longer."""
    bandwidth, failures = options.checkpoint_bytes_per_second, options.mean_time_between_failures_hours
    write = None if bandwidth is None else checkpoint_bytes / bandwidth
    interval, reason = options.checkpoint_interval_seconds, "as given"
    if interval is None:
        if write is None or failures is None:
            return Cadence(None, None, "it needs the mean time between failures and the write "
                           "bandwidth, or an interval", write)
        interval = daly_interval_seconds(write, failures * HOUR)
        reason = (f"Daly's optimum [R7] for {write:,.0f} s per write and a failure every "
                  f"{failures:g} h")
    return Cadence(interval, max(1, int(interval // step.planned)), reason, write)


def overhead_factor(rhythm: Cadence, options: RequestOptions) -> float:
    """Seconds of a job per second of training: writing, and work that failures undo. [R8]

    1 + d / tau + (tau + d) / (2 M): a write of d seconds after tau seconds of work while nobody
    computes, and half of that repeated every M seconds. What is not known counts as 0.
    """
    tau, d = rhythm.interval_seconds, rhythm.write_seconds or 0.0
    if tau is None:
        return 1.0
    failures = options.mean_time_between_failures_hours
    repeated = 0.0 if failures is None else (tau + d) / (2 * failures * HOUR)
    return 1.0 + d / tau + repeated


def jobs_of(seconds: Span, rhythm: Cadence, options: RequestOptions) -> tuple[int, float]:
    """Jobs in a row, and seconds that each one asks for. [R10]

    A job works until stop_seconds before its end. Raises InputError where there would be more than
    1,000, or where no checkpoint falls into one.
    """
    stop, limit = options.stop_seconds, options.wall_time_limit_hours
    if limit is None or seconds.planned + stop <= limit * HOUR:
        return 1, seconds.planned + stop
    usable = limit * HOUR - stop
    jobs = math.ceil(seconds.planned / usable)
    if jobs > MOST_JOBS:
        raise InputError(
            f"{seconds.planned / HOUR:,.0f} hours in jobs of {limit:g} hours are {jobs:,} jobs",
            "take more GPUs, fewer tokens, or a longer wall_time_limit_hours")
    interval = rhythm.interval_seconds
    if interval is not None and interval > usable:
        raise InputError(
            f"a checkpoint every {interval:,.0f} s, but a job works for {usable:,.0f} s only",
            "set checkpoint_interval_seconds below that, or raise wall_time_limit_hours")
    return jobs, limit * HOUR
