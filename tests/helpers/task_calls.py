"""Calls by which an agent of Claude Code keeps its task list, and what a state shows of it."""


def create(session, task_id, subject, agent=None):
    """The agent creates a task."""
    return session.call(
        "PostToolUse", agent, tool_name="TaskCreate",
        tool_input={"subject": subject, "description": "d", "activeForm": "f"},
        tool_response={"task": {"id": task_id, "subject": subject, "description": "d"}},
    )  # fmt: skip


def updated(task_id, former, status):
    """The fields of a call that changes a task's status."""
    change = {"from": former, "to": status}
    return {
        "tool_name": "TaskUpdate",
        "tool_input": {"taskId": task_id, "status": status},
        "tool_response": {"success": True, "taskId": task_id, "statusChange": change},
    }


def update(session, task_id, former, status, agent=None):
    """The agent changes a task's status."""
    return session.call("PostToolUse", agent, **updated(task_id, former, status))


def listed(session, *tasks, agent=None):
    """The agent asks for the list: (id, subject, status) each."""
    found = [
        {"id": task_id, "subject": subject, "status": status, "blockedBy": []}
        for task_id, subject, status in tasks
    ]
    return session.call(
        "PostToolUse", agent, tool_name="TaskList", tool_input={}, tool_response={"tasks": found}
    )


def shown(record):
    """What a table shows of an agent's work."""
    return f"{record.tasks_completed}/{record.tasks_total}", record.current_task


def statuses(record):
    """The status of every task by its id."""
    return {task["id"]: task["status"] for task in record.tasks or ()}
