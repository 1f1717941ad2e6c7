"""Functions as tasks: submit one, then a hundred. With `headway up` running: python examples/hello.py"""

from headway import Client, task


@task(attempts=3, execution_cap="30s")
def greet(name: str) -> str:
    return f"Hello, {name}!"


@task(resources={"cpus": 0.25, "memory": "64MiB"})
def square(number: int) -> int:
    return number * number


def main() -> None:
    with Client():
        print(greet.submit("world").result(timeout=30))
        handles = square.map(range(100))
        print("sum of squares below 100:", sum(handle.result(timeout=30) for handle in handles))


if __name__ == "__main__":
    main()
