"""Command lines by click and typer: `commands.py click train ...`."""

import sys

import click
import typer

program = typer.Typer()


@program.command()
def train(lr: float = 0.1, name: str = typer.Option(...)):
    print("typer", lr, name)
    raise typer.Exit(3)


@click.group()
def group():
    pass


@group.command(name="train")
@click.option("--lr", type=float, default=0.1)
@click.argument("paths", nargs=-1)
def train_with_click(lr, paths):
    click.secho(f"click {lr} {paths}", fg="green")


{"click": group, "typer": program}[sys.argv.pop(1)]()
