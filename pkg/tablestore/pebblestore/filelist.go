package pebblestore

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// listName is the name of the file with the list of the store's files.
//
// invariant: no file OPEN ⇒ the directory holds exactly the files of the list.
const listName = "FILES"

// listEnd precedes the list's own checksum.
const listEnd = "this list: "

// castagnoli is the polynomial that processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// listFiles returns the state of each of the store's files.
func listFiles(files vfs.FS, dir string) (map[string]string, error) {
	names, err := files.List(dir)
	if err != nil {
		return nil, err
	}
	list := map[string]string{}
	for _, name := range names {
		if isStoreFile(name) && name != listName && name != openMarkName {
			if list[name], err = stateOf(files, files.PathJoin(dir, name), math.MaxInt64); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// stateOf returns the size and checksum of a file, or of its beginning. Tables have
// checksums of their own, and are too large to be read at each start.
func stateOf(files vfs.FS, name string, limit int64) (state string, err error) {
	if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
		info, err := files.Stat(name)
		if err != nil {
			return "", err
		}
		return fmt.Sprint(info.Size(), " bytes"), nil
	}
	file, err := files.Open(name)
	if err != nil {
		return "", err
	}
	hash := crc32.New(castagnoli)
	size, err := io.Copy(hash, io.LimitReader(file, limit))
	return fmt.Sprintf("%d bytes (checksum %08x)", size, hash.Sum32()), errors.Join(err, file.Close())
}

// writeList writes the list.
func writeList(files vfs.FS, dir string) error {
	list, err := listFiles(files, dir)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(list)) {
		fmt.Fprintf(&text, "%s: %s\n", name, list[name])
	}
	return writeFile(files, files.PathJoin(dir, listName), func(fs.FileInfo) []byte {
		return fmt.Appendf(nil, "%s%s%08x\n", &text, listEnd, crc32.Checksum([]byte(text.String()), castagnoli))
	})
}

// checkList returns [tablestore.ErrDamaged] unless the directory holds the files of the list.
func checkList(files vfs.FS, dir string) error {
	data, err := readFile(files, files.PathJoin(dir, listName))
	if errors.Is(err, fs.ErrNotExist) {
		return damaged(dir, listName+" is missing, which the last stop wrote")
	}
	now, errNow := listFiles(files, dir)
	if err := errors.Join(err, errNow); err != nil {
		return err
	}
	text, sum, _ := strings.Cut(string(data), listEnd)
	if sum != fmt.Sprintf("%08x\n", crc32.Checksum([]byte(text), castagnoli)) {
		return damaged(dir, listName+" is damaged")
	}
	for line := range strings.Lines(text) {
		name, state, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch found := now[name]; found {
		case state:
		case "":
			return damaged(dir, name+" is missing, which was there at the last stop")
		default:
			return damaged(dir, fmt.Sprintf("%s has changed since the last stop, from %s to %s", name, state, found))
		}
		delete(now, name)
	}
	for name := range now {
		return damaged(dir, name+" was added since the last stop")
	}
	return nil
}

// newSuffix is at the end of the name of a file that is being written.
const newSuffix = ".new"

// writeFile writes or replaces a file at once and durably. content gets its description.
func writeFile(files vfs.FS, name string, content func(fs.FileInfo) []byte) error {
	file, err := files.Create(name+newSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil {
		_, err = file.Write(content(info))
	}
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return errors.Join(files.Rename(name+newSuffix, name), syncDir(files, files.PathDir(name)))
}

// readFile returns a file's content.
func readFile(files vfs.FS, name string) ([]byte, error) {
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(file)
	return data, errors.Join(err, file.Close())
}

// removeFile removes a file durably.
func removeFile(files vfs.FS, name string) error {
	return errors.Join(files.Remove(name), syncDir(files, files.PathDir(name)))
}
