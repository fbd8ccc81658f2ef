"""Settings of a federated run, which server and clients share: plain data, and the sections of its YAML."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from fedpart.checks import require
from fedpart.federated.options import Deal, checked_architectures, checked_caps
from fedpart.federated.pace.settings import PaceSettings
from fedpart.partition.sharing import sharing_of
from fedpart.training.local import LocalSettings
from fedpart.training.optimisers import AdamSettings, ServerSettings, SGDSettings
from fedpart.training.settings import documented, setting
from fedpart.updates.codecs import CODECS, Codec
from fedpart.updates.combining import Combination
from fedpart.updates.combining.base import combined
from fedpart.updates.defences import DEFENCES
from fedpart.updates.stages import check_stages
from fedpart.updates.stages.clip import ClipSettings
from fedpart.updates.stages.privacy import PrivacySettings
from fedpart.updates.stages.robust import Defended

LARGEST_COUNT = 10**9  # examples; weighted by that many, the largest values that are taken are still finite


@documented
@dataclass(frozen=True, kw_only=True)
class FederationSettings(PaceSettings):
    """Everything about a run but the task and the data; defaults are the paper's MNIST settings (App. J.2).

    Raises:
        ValueError: a value out of range, or safeguards that make no sense with each other; one sentence.
    """

    chunks: tuple[float, ...] = setting((0.7, 0.2, 0.1), "proportions u of the clients' chunks, sum 1")
    clients: int = setting(100, "N, number of clients; they are numbered 0..N-1", ge=1)
    cohort: int = setting(10, "clients per round; the paper does not say", ge=1)
    caps: dict[int, float] | None = setting(
        None,
        "shares of the clients by cap c: their devices compute the subnetworks 1..c, not the later ones; sum "
        "1, e.g. {1: 0.4, 3: 0.6}; null: all devices compute all",
    )
    caps_by: Deal = setting(
        "chunk", "who has which cap: chunk, the smallest in the first chunks; free, in any chunk"
    )
    architectures: tuple[Mapping[str, Any], ...] | None = setting(
        None,
        "sizes of the clients' networks: for each its share of the clients, and model_options with which it "
        "is built, [{share: 0.4, model_options: {width: 1.0}}, ...]; shares sum to 1, and the task's network "
        "contains them all; null: all have that one",
    )
    sharing: Mapping[str, Any] | None = setting(
        None,
        "what the networks of all architectures have in common, from which the weights of their layers are "
        "composed: its kind, bank (SuperWeights) or basis (FLANC) or package.module:Class, and its options, "
        "{kind: bank, budget: 400000}; null: leading corners of the largest network's weights",
    )
    local: LocalSettings = setting(LocalSettings(), "clients' training")
    server: AdamSettings | SGDSettings = setting(
        AdamSettings(), "the server's optimiser on averaged changes of the weights: Adam, or SGD"
    )
    server_psi: AdamSettings | SGDSettings = setting(
        AdamSettings(3e-3), "the server's optimiser on averaged psi gradients: Adam, or SGD"
    )
    weighting: Literal["examples", "uniform"] = setting(
        "examples", "weights of clients in averages of the weights; psi gradients are sums over examples"
    )
    on_client_error: Literal["fail", "skip"] = setting(
        "fail",
        "whether a client's error or refused upload ends the run, or the round goes on without it",
        decides="course",
    )
    max_examples: int = setting(
        LARGEST_COUNT, "that a client may claim to have", decides="course", ge=1, le=LARGEST_COUNT
    )
    min_replies: int = setting(
        1, "updates without which a round leaves weights and psi as they are", decides="course", ge=1
    )
    round_timeout: float = setting(
        3600.0, "seconds that clients on other machines have for a round", decides="nothing", gt=0
    )
    node_timeout: float = setting(
        600.0, "seconds for which clients that are not connected are waited for", decides="nothing", ge=0
    )
    clip: ClipSettings | None = setting(
        None,
        "norms to which updates are clipped, by the client and again by the server; adaptive: by the server, "
        "to 4 times what is usual; null: none. Deployed runs whose configuration says nothing have adaptive",
    )
    upload: str | None = setting(
        None,
        "how clients send their changes of weights: fp16, bf16, int8, int4, topk or package.module:Class; "
        "null: as they are",
    )
    upload_options: Mapping[str, Any] = setting({}, "keyword arguments of the upload codec")
    error_feedback: bool = setting(
        False, "whether clients keep what the upload codec loses of a change, and add it to their next one"
    )
    download: Literal["fp16", "bf16"] | None = setting(
        None,
        "the 16 bits to which weights are rounded on their way to clients, who start from these: fp16 or "
        "bf16; null: as they are",
    )
    defence: str | None = setting(
        None,
        "what takes the place of the mean over the clients that have trained a partition, and of that over "
        "psi's gradients: trim, median, geometric (RFA), krum (multi-Krum), centred (centred clipping with "
        "momentum) or package.module:Class; null: the mean",
    )
    defence_options: Mapping[str, Any] = setting(
        {},
        "keyword arguments of the defence, e.g. {share: 0.2}; any takes bucket, how many clients, drawn anew "
        "each round, are averaged before it sees them: 2 where clients' data differ; fewer hostile ones are "
        "borne",
    )
    privacy: PrivacySettings | None = setting(None, "differential privacy of clients; null: none")
    evaluation: Literal["central", "clients", "none"] = setting(
        "central",
        "central: on the server's validation data; clients: also by the clients, on a share of their "
        "examples that neither weights nor psi learn from, while other runs learn from all of them; none: "
        "not at all, neither on validation nor on test data",
    )
    evaluation_share: float | None = setting(
        0.2,
        "with evaluation: clients, the share of each client's examples that is held out; null: none, for "
        "clients have others of their own: here a part of the validation data, dealt as the training points",
        gt=0,
        lt=1,
    )
    evaluation_clients: int = setting(
        100, "with evaluation: clients, how many score the network at most, drawn anew each time", ge=1
    )
    evaluation_samples: int | None = setting(None, "S in evaluations; null: as `samples`", ge=1)
    keep_best: Literal["lml"] | None = setting(
        None,
        "lml: end with the weights and psi of the round whose L_ML was best, a mean of ten rounds; where "
        "there are fewer, and with null: with those of the last round; refused where there is no L_ML",
    )
    _others = (SGDSettings(1.0),)  # of a server: the plain mean

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("server", "server_psi"):
            if type(optimiser := getattr(self, key)) not in (AdamSettings, SGDSettings):
                remedy = "give it AdamSettings or SGDSettings"
                raise ValueError(f"The server steps by Adam or SGD, but {key} is {optimiser!r}; {remedy}.")
        of_psi = "A hypergradient is of psi; leave it out of server, and give the method halving."
        require(not getattr(self.server, "hypergradient", 0.0), of_psi)
        require(
            self.cohort <= self.clients,
            f"The cohort must be between 1 and the number of clients ({self.clients}), got {self.cohort}.",
        )
        require(
            self.min_replies <= self.cohort,
            f"min_replies is between 1 and the cohort ({self.cohort}), got {self.min_replies}.",
        )
        if self.caps is not None:
            object.__setattr__(self, "caps", checked_caps(self.caps, len(self.chunks)))
        fault = f"caps_by is {self.caps_by}, but there are no caps to deal"
        require(self.caps is not None or self.caps_by == "chunk", f"{fault}; set caps as well.")
        if self.architectures is not None:
            object.__setattr__(self, "architectures", checked_architectures(self.architectures))
        if self.sharing is not None:
            sharing_of(self.sharing)  # refuses
            fault = "sharing says what networks of several sizes have in common"
            require(self.architectures is not None, f"{fault}; set architectures as well.")
            require(
                self.scheme != "node",
                "The scheme node divides units of plain layers, but with sharing their weights are composed; "
                "use scheme: random.",
            )
        check_stages(self)
        self.check_pace(self.clients, self.cohort, self.min_replies, self.privacy is not None)
        require(
            self.keep_best is None or (self.privacy is None and self.buffer is None),
            "keep_best goes by L_ML, which stays with clients with privacy, and is of several rounds with a "
            "buffer; leave keep_best out, or privacy and buffer.",
        )
        if self.buffer is not None:
            require(
                self.defence is None,
                "A defence compares clients that start from the same weights, and with a buffer they do not; "
                "leave defence or buffer out.",
            )
            require(
                not self.error_feedback,
                "With error_feedback a client begins with what its last round has left, which steps with a "
                "buffer do not follow; leave error_feedback or buffer out.",
            )

    def defend(self) -> Defended:
        """The defence, as a run begins with it."""
        options = dict(self.defence_options)
        bucket = options.pop("bucket", 1)
        return Defended(DEFENCES.make(str(self.defence), options), bucket, self.seed)

    @cached_property
    def _combined(self) -> tuple[Combination, ServerSettings | None]:
        return combined(self.method, self.method_options)[1:]

    @cached_property
    def combination(self) -> Combination:
        """What clients do, and the server with their changes, beside the method."""
        return self._combined[0]

    @property
    def scored(self) -> bool:
        """Whether the server's own network is evaluated."""
        return self.evaluation != "none" and self.combination.whole

    @property
    def stepped_by(self) -> ServerSettings:
        """The server's optimiser of the weights: the method's name may say so (``fedavg+yogi``)."""
        return self._combined[1] or self.server

    @property
    def keeps(self) -> bool:
        """Whether clients keep something from one round for their next ones."""
        return self.error_feedback or self.combination.keeps

    def codec(self) -> Codec:
        """The upload codec, where there is one."""
        made: Codec = CODECS.make(str(self.upload), self.upload_options)
        return made

    @property
    def noise_by_kind(self) -> bool:
        """Whether noise is for the kinds of the N clients, so that none of another kind may join."""
        return self.privacy is not None and (self.caps is not None or self.architectures is not None)

    def deciding(self) -> dict[str, Any]:
        """See :meth:`.Settings.deciding`: without options of what there is none of."""
        decide = super().deciding()
        decide["clip"] = None if self.clip is None else self.clip.of_clients()
        if self.caps is None:
            del decide["caps_by"]
        if self.keep_best is None:
            del decide["keep_best"]
        if self.local.cosine_rounds is None:
            del decide["local"]["cosine_rounds"]
        if self.sharing is None:
            del decide["sharing"]
        decide["error_feedback"] = self.error_feedback or None  # as a run that has not heard of it
        if self.upload is None:
            del decide["upload_options"], decide["error_feedback"]
        if self.defence is None:
            del decide["defence_options"]
        later = {key: decide.pop(key) for key in [*decide][[*decide].index("privacy") :]}
        decide |= {"bucket": None, "trim": None, **later}  # earlier runs' files are sealed with these
        if self.evaluation == "clients":
            return decide
        return {key: value for key, value in decide.items() if not key.startswith("evaluation")}

    def of_server(self) -> dict[str, Any]:
        """See :meth:`.PaceSettings.pace`; with what else the server alone decides by."""
        if self.clip is None or not self.clip.adaptive:
            return self.pace()
        unheard = ["quantile"] if self.clip.quantile is None else []  # of, in earlier runs
        return {**self.pace(), "clip": {k: v for k, v in asdict(self.clip).items() if k not in unheard}}

    def check_caps(self, chunks: int) -> None:
        """Refuse caps where a client has no smaller subnetwork; ``chunks`` are those that the method uses."""
        require(
            self.caps is None or chunks > 1,
            f"caps say which subnetworks a client computes, but the method {self.method!r} has one network "
            f"for all here; leave caps out, or use method: partitioned with several chunks.",
        )

    def check_feedback(self, held_out: float) -> None:
        """Refuse what changes psi's sum if clients add feedback to it, on the share that they hold out."""
        used = [name for name in ("defence", "privacy") if getattr(self, name) is not None]
        if self.clip is not None and self.clip.psi is not None:
            used.append("clip.psi")
        if self.buffer is not None:
            used.append("buffer")
        if held_out and used:
            raise ValueError(
                f"The method {self.method!r} scores by examples that clients hold out and needs the sums of "
                f"their scores and counts, which {used[0]} does not leave as they are; leave {used[0]} out, "
                f"or use another method."
            )
