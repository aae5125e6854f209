"""`python -m bench._baseline_server DATABASE_URL PORT`: a server with one POST route, which commits one row."""

import sys
from typing import Any

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

from service.db.engine import Database


def make_app(database: Database) -> FastAPI:
    """Return an app whose only route stores the request body as a row."""
    app = FastAPI()
    statement = sa.text("INSERT INTO floor (body) VALUES (:body)")
    with database.write() as session:
        session.execute(sa.text("CREATE TABLE IF NOT EXISTS floor (body TEXT)"))

    def insert(body: str) -> None:
        with database.write() as session:
            session.execute(statement, {"body": body})

    @app.post("/floor", status_code=201)
    async def insert_row(request: Request) -> Any:
        body = (await request.body()).decode()
        await run_in_threadpool(insert, body)
        return {"stored": len(body)}

    return app


if __name__ == "__main__":
    uvicorn.run(make_app(Database(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
