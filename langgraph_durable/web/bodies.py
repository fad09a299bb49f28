"""What comes in, as models: with `answers`, the OpenAPI document is made of these.

Unknown fields are refused, so that a `tenant` or a `decided_by` in a body is an error and
not a silence.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from langgraph_durable.runs import (
    Choice,
    Decision,
    QuestionState,
    Status,
)

MAX_REASON_CHARACTERS = 2_000
MAX_PAGE = 200

Name = Annotated[str, Field(min_length=1, max_length=200)]
Reason = Annotated[str, Field(max_length=MAX_REASON_CHARACTERS)]
Seconds = Annotated[float, Field(gt=0, le=3.15e9)]


class Body(BaseModel):
    """A request: unknown fields are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


# --- in --------------------------------------------------------------------------------


class SubmitBody(Body):
    """A run to submit. Its tenant is the key's."""

    agent: Name
    input: JsonValue = None
    version: Name | None = None
    thread: Name | None = Field(
        default=None, description="A conversation of the tenant and agent; by default its own."
    )
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    max_attempts: int | None = Field(default=None, ge=1, le=1_000)


class SignalBody(Body):
    """An event to signal to a run."""

    event: Name
    payload: JsonValue = None
    id: Name | None = Field(
        default=None,
        description="The sender's id: the same signal again under it changes nothing.",
    )


class ToolCallRef(BaseModel):
    """AgentScope's tool call: its id is a step's key, or a question's id."""

    model_config = ConfigDict(extra="allow")

    id: Name
    input: JsonValue = Field(
        default=None, description="Arguments, as an object or as JSON text; changed: an edit."
    )


class ConfirmResult(Body):
    """AgentScope's answer to one tool call."""

    confirmed: bool
    tool_call_id: Name | None = None
    tool_call: ToolCallRef | None = None
    rules: list[JsonValue] | None = Field(
        default=None, description="Rules from now on: ours as data, or AgentScope's."
    )

    @model_validator(mode="after")
    def _one_name(self) -> ConfirmResult:
        if (self.tool_call_id is None) == (self.tool_call is None):
            raise ValueError("give tool_call_id or tool_call")
        return self


class ConfirmBody(Body):
    """AgentScope's event: what a person answered, sent to where the run was started."""

    type: Literal["USER_CONFIRM_RESULT"]
    reply_id: Name = Field(description="The run's id.")
    confirm_results: list[ConfirmResult] = Field(min_length=1, max_length=100)
    id: str | None = Field(default=None, max_length=200)
    created_at: str | None = Field(default=None, max_length=100)
    metadata: dict[str, JsonValue] | None = None


class ApproveBody(Body):
    """Which questions of a run to approve; without a list all open ones."""

    questions: list[Name] | None = Field(default=None, min_length=1, max_length=100)
    reason: Reason = ""


class DecisionBody(Body):
    """The answer to a question. Who made it is the key's name."""

    choice: Choice
    reason: Reason = ""
    arguments: dict[str, JsonValue] | None = Field(
        default=None, description="Only with `edit`: what is executed instead."
    )
    value: JsonValue = Field(default=None, description="Only with `respond`: the answer.")
    rules: list[dict[str, JsonValue]] = Field(
        default=[],
        max_length=10,
        description="Rules of policy from now on, for this tenant and the tool that is asked about.",
    )
    until: AwareDatetime | None = Field(
        default=None, strict=False, description="When the rules end."
    )

    @field_validator("until")
    @classmethod
    def _in_utc(cls, until: datetime | None) -> datetime | None:
        # pydantic's own zone is not journaled
        try:
            return None if until is None else until.astimezone(UTC)
        except OverflowError:
            raise ValueError("this time is outside of the calendar") from None

    @model_validator(mode="after")
    def _fits_choice(self) -> DecisionBody:
        brought = self.model_fields_set & {"arguments", "value"}
        wanted = {"edit": {"arguments"}, "respond": {"value"}}.get(self.choice, set())
        if brought != wanted or (self.choice == "edit" and self.arguments is None):
            raise ValueError(
                f"{self.choice} takes {' and '.join(wanted) or 'neither arguments nor value'}"
            )
        return self

    def decision(self, by: str) -> Decision:
        """Return the decision that this says."""
        return Decision(
            self.choice, by, self.reason, self.arguments, self.value, self.rules, self.until
        )


class DelegateBody(Body):
    """Whom a question is handed to: a role, or a person by the name of their key."""

    role: Name | None = None
    person: Name | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> DelegateBody:
        if (self.role is None) == (self.person is None):
            raise ValueError("give role or person")
        return self


class KeyBody(Body):
    """A key to make, for the tenant of the key that makes it."""

    name: Name
    roles: list[Name] = Field(min_length=1, max_length=20)
    scopes: list[Name] = Field(default=[], max_length=100)
    expires_in_seconds: Seconds | None = None


class RotateBody(Body):
    """How long the old key still works."""

    grace_seconds: float = Field(default=0.0, ge=0, le=3.15e9)


class RunsQuery(BaseModel):
    """Which runs to list."""

    model_config = ConfigDict(extra="forbid")

    status: Status | None = None
    agent: str | None = Field(default=None, max_length=200)
    thread: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(default=None, max_length=300, description="`next` of a page.")


class QuestionsQuery(BaseModel):
    """Which questions to list."""

    model_config = ConfigDict(extra="forbid")

    state: QuestionState | Literal["all"] = QuestionState.OPEN
    run_id: str | None = Field(default=None, max_length=300)
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(default=None, max_length=300, description="`next` of a page.")


class WaitQuery(BaseModel):
    """How long to wait."""

    model_config = ConfigDict(extra="forbid")

    timeout_seconds: float = Field(default=30.0, ge=0, le=60, allow_inf_nan=False)
