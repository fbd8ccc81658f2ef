"""ExperimentConfig: everything that decides a federated run; and the published numbers that it may name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, field_validator, model_validator

from fedpart import ClipSettings, FederationSettings
from fedpart.checks import require
from fedpart.data import knows_clients
from fedpart.engines import EXECUTIONS
from fedpart.federated.clients import check_clients
from fedpart.federated.pace.settings import PaceSettings
from simulations.config import sections
from simulations.config.keys import entry, section_of
from simulations.config.messages import named
from simulations.config.shared import Clock, Config
from simulations.config.yaml_files import read_yaml


@dataclass(frozen=True)
class Published:
    """A cell of the paper's Table 4."""

    name: str  # data set and training points, e.g. mnist-1.25k
    rounds: int  # that the paper trains for
    # by method, mean and standard error on validation data over four seeds; fractions
    accuracy: dict[str, dict[str, float]]

    @classmethod
    def of(cls, name: str) -> "Published":
        cells = read_yaml(Path(__file__).with_name("published.yaml"))
        if name not in cells:
            raise ValueError(f"the paper's Table 4 has no cell {name!r}; its cells are {', '.join(cells)}")
        rounds, scores = cells[name].pop("rounds"), cells[name]
        accuracy = {method: {"mean": m / 100, "error": e / 100} for method, (m, e) in scores.items()}
        return cls(name, rounds, accuracy)


_Keys = section_of(
    FederationSettings,
    leave_out=("evaluation_clients", "max_examples"),
    null={"on_client_error": "skip with engine flower, where clients come and go, fail with the others"},
)
_Pace = section_of(PaceSettings, leave_out=("overselect", "concurrency", "staleness"))


class ExperimentConfig(_Keys, _Pace, Config):
    """A federated experiment; defaults are the paper's MNIST settings where it states them (App. J.2)."""

    clock: ClassVar[Clock] = Clock("round", "rounds", "run", "federated", "federated experiments")
    rounds: int = entry(100, "rounds of federated training", ge=1)
    local: sections.LocalSection = entry(sections.LocalSection(), "clients' training")
    server: sections.ServerSection = entry(
        sections.ServerSection(), "the server's optimiser on averaged changes of the weights"
    )
    server_psi: sections.PsiServerSection = entry(
        sections.PsiServerSection(), "the server's optimiser on averaged psi gradients"
    )
    split: sections.SplitSection = entry(sections.SplitSection(), "how clients share the training points")

    engine: Literal["local", "ray", "flower"] = entry(
        "local",
        "local: this process; ray: Flower's apps on Ray actors; flower: what `flwr run` records",
        decides="course",
    )
    workers: int | None = entry(
        None,
        "processes that run the clients; null: 1 with engine local, one per CPU core with ray",
        decides="nothing",
        ge=1,
    )
    execution: named(EXECUTIONS) = entry(
        "auto",
        "how engine local computes a cohort: loop, client by client; grouped, several at a time, for "
        "a GPU; fused, its data together, where each client takes one step and nothing looks at its own "
        "update; auto, loop on a CPU, and else the first of fused, grouped and loop that takes the run; or "
        "package.module:callable",
        decides="course",
    )
    attack: sections.AttackSection | None = entry(
        None,
        "what some clients do against the others, in simulations with engine local; null: all are honest",
    )
    beside: str | None = entry(
        None,
        "a method that `fedpart run` runs afterwards on the same clients and cohorts, into beside/ in the "
        "run's folder; its score stands in the closing panel",
        decides="nothing",
    )
    evaluate_every: int = entry(10, "rounds between evaluations; the last round is always evaluated", ge=1)
    full_validation_rounds: int = entry(
        0, "so many last rounds are evaluated on all validation data, whatever validation_points", ge=0
    )
    published: Annotated[str, AfterValidator(lambda name: Published.of(name).name)] | None = entry(
        None,
        "the cell of the paper's Table 4 that this repeats, e.g. mnist-1.25k; compare and report put its "
        "numbers beside ours",
        decides="nothing",
    )

    @field_validator("clip", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return ClipSettings.short.get(value, value) if isinstance(value, str) else value

    @field_validator("beside")
    @classmethod
    def _beside(cls, value: str | None) -> str | None:
        return None if value is None else cls._method(value)

    @model_validator(mode="before")
    @classmethod
    def _natural(cls, data: Any) -> Any:
        """Clients whom the data set knows keep their examples, if no recipe is given."""
        if not isinstance(data, dict):
            return data
        options, split = data.get("data_options"), data.get("split", {})
        if not (isinstance(options or {}, dict) and isinstance(split, dict)) or "recipe" in split:
            return data
        known = knows_clients(str(data.get("data")), options or {})
        return {**data, "split": {**split, "recipe": "natural"}} if known else data

    @model_validator(mode="after")
    def _consistent(self) -> "ExperimentConfig":
        settings, method = self.settings(), self.build_method()
        settings.check_feedback(method.held_out)
        chunks = len(method.proportions(self.chunks))
        check_clients(chunks, self.clients)
        settings.check_caps(chunks)
        if self.execution not in ("auto", "loop") and (self.engine != "local" or self.processes != 1):
            remedy = "set execution: loop, or engine: local and workers: 1"
            raise ValueError(f"execution: {self.execution} is for engine local with one worker; {remedy}")
        if self.attack is not None:
            self._check_attack()
        parts = self.privacy, self.training_points, self.data_options.get("classes")
        if self.apart and (self.split.recipe != "natural" or any(part is not None for part in parts)):
            raise ValueError(
                "statistics: federated sums all training rows of clients that data_options.client names, and "
                "keeps no sum private; leave privacy, training_points, data_options.classes and split out"
            )
        if self.engine == "local" and self.processes != 1 and self.threads != 1:
            remedy = "set threads: 1, or workers: 1"
            raise ValueError(f"{self.processes} workers of engine local have one torch thread each; {remedy}")
        share = type(self).model_fields["evaluation_share"].default
        if self.evaluation != "clients" and self.evaluation_share != share:
            remedy = "set that, or leave evaluation_share out"
            raise ValueError(f"evaluation_share is for evaluation: clients; {remedy}")
        if self.measures and self.evaluation == "none":
            fault = "measures are taken on the test data, which evaluation: none does not look at"
            raise ValueError(f"{fault}; set evaluation: central or clients, or leave measures out")
        if self.split.by == "angle" and not self.rotated:
            remedy = "set rotated: true or split.by: label"
            raise ValueError(f"split.by is angle, but the data are not rotated; {remedy}")
        return self

    @property
    def apart(self) -> bool:
        """Whether the preprocessing is made of what clients tell, each of its own rows."""
        return self.data == "table" and self.data_options.get("statistics", "pooled") != "pooled"

    def with_statistics(self, statistics: Any) -> "ExperimentConfig":
        """The same with another option ``statistics`` of the table, see :func:`.load_table`."""
        return self.model_copy(update={"data_options": {**self.data_options, "statistics": statistics}})

    def _check_attack(self) -> None:
        for key, value, wanted in (
            ("engine", self.engine, "local"),
            ("workers", self.processes, 1),
            ("execution", self.execution, "loop"),
        ):
            fault = f"an attack is simulated in one process, client by client, but {key} is {value}"
            require(value in ("auto", wanted), f"{fault}; set {key}: {wanted}, or leave attack out")
        if self.upload is not None:
            remedy = "leave attack or upload out"
            raise ValueError(f"an attack changes the numbers that are uploaded, not their codes; {remedy}")
        if self.attack is not None and self.attack.once is not None and (self.devices or self.privacy):
            fault = "attack.once goes by the cohorts that are drawn from the seed,"
            raise ValueError(f"{fault} and with devices or privacy others take part; leave once out")

    @property
    def processes(self) -> int | None:
        """How many processes run the clients; None: as many as the Ray cluster has CPU cores."""
        return 1 if self.workers is None and self.engine == "local" else self.workers

    def settings(self) -> FederationSettings:
        """The part that server and clients share, in the library's terms."""
        skips = self.on_client_error is None and self.engine == "flower"
        return self.settings_as(
            FederationSettings,
            local=self.local.settings(),
            server=self.server.settings(),
            server_psi=self.server_psi.settings(self.server.eps),
            on_client_error="skip" if skips else self.on_client_error,
        )
