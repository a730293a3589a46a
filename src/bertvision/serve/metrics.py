"""What the server counts, for Prometheus to read at /metrics."""

from collections.abc import Callable

from bertvision import __version__
from bertvision.serve.batching import Batch

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
QUESTIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    """Counters of one server; two servers in one process do not share them."""

    def __init__(self, reader: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        from prometheus_client.platform_collector import PlatformCollector
        from prometheus_client.process_collector import ProcessCollector

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU, open files
        PlatformCollector(registry=self.registry)
        about = Gauge("bertvision_info", "What is served.", ["version", "reader"], registry=self.registry)
        about.labels(__version__, reader).set(1)
        self._requests = Counter(
            "bertvision_requests", "Requests, by route and status.", ["route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "bertvision_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=self.registry
        )
        self._waiting = Gauge("bertvision_waiting_questions", "Questions in the queue.", registry=self.registry)
        self._batch_seconds = Histogram(
            "bertvision_batch_seconds", "Time of one pass of the model.", buckets=SECONDS, registry=self.registry
        )
        self._batch_questions = Histogram(
            "bertvision_batch_questions", "Questions in one pass.", buckets=QUESTIONS, registry=self.registry
        )
        self._batch_tokens = Histogram(
            "bertvision_batch_tokens", "Tokens in one pass.", buckets=TOKENS, registry=self.registry
        )

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """From now on the gauge asks `waiting` whenever it is read."""
        self._waiting.set_function(waiting)

    def request(self, route: str, status: int, seconds: float) -> None:
        """One request is over. route: one of a few names, never a path that a client made up."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, batch: Batch) -> None:
        """One pass of the model is over."""
        self._batch_seconds.observe(batch.seconds)
        self._batch_questions.observe(batch.questions)
        self._batch_tokens.observe(batch.tokens)

    def text(self) -> tuple[bytes, str]:
        """All of it in Prometheus' format, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST
