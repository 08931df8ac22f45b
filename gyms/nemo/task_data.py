"""Task-data schema of the German orders, as upstream's tools read it."""

from pydantic import BaseModel, ConfigDict, Field


class TaskData(BaseModel):
    """Row fields beside ``responses_create_params``; none holds a quantity or an answer."""

    model_config = ConfigDict(extra="allow")

    task_id: str = Field(
        description="Names the task: pool/split/seed/index.", json_schema_extra={"consumed_by": ["verify"]}
    )
    core: str = Field(
        description="sha256 of the task core the row was made for; a server with another core refuses it.",
        json_schema_extra={"consumed_by": ["verify"]},
    )
    seal: str = Field(
        description="Tells the harness's own seed and verify bodies from a model's tool call of that name.",
        json_schema_extra={"consumed_by": ["verify"]},
    )
