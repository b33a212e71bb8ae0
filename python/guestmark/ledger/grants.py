"""What a role on a PostgreSQL server may do with a ledger: all that measuring needs, and nothing else."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from guestmark.ledger import schema

# Trials are added and never changed or removed; checksums and what is left out are replaced.
_RIGHTS = {
    schema.schema.name: "SELECT",
    schema.runs.name: "SELECT, INSERT, UPDATE (state, owner, plan)",
    schema.environments.name: "SELECT, INSERT",
    schema.unusable.name: "SELECT, INSERT, DELETE",
    schema.trials.name: "SELECT, INSERT",
    schema.checks.name: "SELECT, INSERT, DELETE",
    schema.comparisons.name: "SELECT, INSERT, DELETE",
    schema.remarks.name: "SELECT, INSERT, DELETE",
    schema.attempts.name: "SELECT, INSERT, UPDATE (outcome, refused)",
}


def setup_script(role: str) -> str:
    """SQL for the owner of the database: makes the tables where there are none, and the role. May be run again."""
    quoted = postgresql.dialect().identifier_preparer.quote_identifier(role)  # type: ignore[no-untyped-call]
    literal = "'" + role.replace("'", "''") + "'"
    tables = [*schema.metadata.sorted_tables, schema.comparisons, schema.remarks, schema.attempts]
    lines = ["BEGIN;"]
    for table in tables:
        made = CreateTable(table, if_not_exists=True).compile(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]
        lines.append(f"{str(made).strip()};")
    for index in schema.comparisons.indexes:
        made_index = CreateIndex(index, if_not_exists=True).compile(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]
        lines.append(f"{str(made_index).strip()};")
    lines += [
        f"INSERT INTO {schema.schema.name} (version) SELECT {schema.SCHEMA_VERSION}"
        f" WHERE NOT EXISTS (SELECT FROM {schema.schema.name});",
        f"DO $do$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN"
        f" CREATE ROLE {quoted} LOGIN; END IF; END $do$;",
        f"GRANT USAGE ON SCHEMA public TO {quoted};",
    ]
    for name, rights in _RIGHTS.items():
        lines += [f"REVOKE ALL ON {name} FROM {quoted};", f"GRANT {rights} ON {name} TO {quoted};"]
    lines.append("COMMIT;")
    return "\n".join(lines) + "\n"
