"""Files and folders on whatever file system Spark knows, by Hadoop's own API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharecoord.analytics.errors import JobFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFolder:
    """A folder that may lie anywhere and need not be there yet."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path, self._io = jvm.org.apache.hadoop.fs.Path, jvm.org.apache.commons.io.IOUtils
        self._charset = jvm.java.nio.charset.StandardCharsets.UTF_8
        self._root = self._path(path)
        self._system = self._root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def exists(self) -> bool:
        """Whether the folder is there."""
        return bool(self._system.exists(self._root))

    def location(self) -> str:
        """The folder as a URI."""
        return str(self._system.makeQualified(self._root).toString())

    def children(self, folder: str = "") -> dict[str, str]:
        """Names and URIs of its files and folders, or of those of a folder in it, by name.

        Empty when the folder is not there.
        """
        place = self._path(self._root, folder) if folder else self._root
        if not self._system.exists(place):
            return {}
        paths = [status.getPath() for status in self._system.listStatus(place)]
        return dict(sorted((path.getName(), path.toString()) for path in paths))

    def read(self, name: str) -> str | None:
        """The text of a file, or None when there is none."""
        place = self._path(self._root, name)
        if not self._system.exists(place):
            return None
        stream = self._system.open(place)
        try:
            text: str = self._io.toString(stream, self._charset)
            return text
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Writes a file; whoever reads it sees all of it or nothing."""
        fresh = self._path(self._root, f".{name}.new")
        stream = self._system.create(fresh, True)  # noqa: FBT003 - Java
        stream.write(bytearray(text.encode()))
        stream.close()
        self.delete(name)
        self._system.rename(fresh, self._path(self._root, name))

    def delete(self, name: str) -> None:
        """Deletes a file, or a folder with all that is in it; nothing happens without one."""
        self._system.delete(self._path(self._root, name), True)  # noqa: FBT003 - Java

    def rename_files(self, pattern: str, old: str, new: str) -> None:
        """Replaces the first `old` in the names of all files that match a pattern."""
        for status in self._system.globStatus(self._path(self._root, pattern)):
            path = status.getPath()
            name = path.getName().replace(old, new, 1)
            self._system.rename(path, self._path(path.getParent(), name))

    def take_in(self, fresh: str, former: str) -> None:
        """Moves the children of the folder `fresh` here, in the place of those with the same names.

        A reader sees either of the two, except between two renames. Where a rename copies (object
        stores) it takes as long as that. Until all is done the former children are in the folder
        `former`, which `bring_back` needs after a crash.

        Raises:
            JobFailedError: The file system refuses.
        """
        self._system.mkdirs(self._path(self._root, former))
        for name in self.children(fresh):
            if self._system.exists(self._path(self._root, name)):
                self._rename(name, f"{former}/{name}")
            self._rename(f"{fresh}/{name}", name)
        self.delete(former)

    def bring_back(self, former: str) -> None:
        """Ends a `take_in` that was killed: what has no successor is here again."""
        for name in self.children(former):
            if not self._system.exists(self._path(self._root, name)):
                self._rename(f"{former}/{name}", name)
        self.delete(former)

    def _rename(self, old: str, new: str) -> None:
        source, target = (self._path(self._root, name) for name in (old, new))
        if not self._system.rename(source, target):
            raise JobFailedError(
                f"{source.toString()} can not be renamed to {target.toString()}: see who may write "
                "there"
            )
