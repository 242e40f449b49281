package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// openMarkName is the name of a file that exists in the directory while a store has it
// open, and after a crash. It holds its own inode, and the state of the manifest when that
// was last synced: the manifest still begins like this, as the engine only appends to it.
const openMarkName = "OPEN"

// openMark is the content of the file when the directory was opened.
type openMark struct {
	found  bool   // The store was not closed in order.
	copied bool   // The file is a copy: the directory was copied while a store had it open.
	note   string // The name and state of the manifest, as in a line of the list; empty if unknown.
}

// readOpenMark reads the file. An unreadable inode is not doubted.
func readOpenMark(files vfs.FS, dir string) (mark openMark, err error) {
	name := files.PathJoin(dir, openMarkName)
	content, err := readFile(files, name)
	if errors.Is(err, fs.ErrNotExist) {
		return mark, nil
	}
	if err != nil {
		return mark, err
	}
	info, err := files.Stat(name)
	if err != nil {
		return mark, err
	}
	number, note, _ := strings.Cut(string(content), "\n")
	noted, unknown := strconv.ParseUint(number, 10, 64)
	own := inode(info)
	return openMark{found: true, copied: unknown == nil && own != 0 && noted != own, note: note}, nil
}

// checkManifest returns [tablestore.ErrDamaged] unless the manifest begins as the note
// says. A missing manifest was not in use yet, or the engine reports it.
func checkManifest(files vfs.FS, dir, note string) error {
	name, noted, _ := strings.Cut(note, ": ")
	var size int64
	if n, _ := fmt.Sscan(noted, &size); n == 0 {
		return nil // A file that was made by hand, or before the first sync, holds no note.
	}
	state, err := stateOf(files, files.PathJoin(dir, name), size)
	if err == nil && state != noted {
		err = damaged(dir, fmt.Sprintf("%s has changed since it was written, from %s to %s", name, noted, state))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// noteManifest notes the state of a manifest that was synced. Its name becomes durable
// before the note. After an error the last note stays in use, since it still holds.
func noteManifest(files vfs.FS, folder *folder, name string) {
	state, err := stateOf(files, name, math.MaxInt64)
	if err == nil && syncDir(files, folder.dir) == nil {
		_ = writeOpenMark(files, folder, files.PathBase(name)+": "+state)
	}
}

// writeOpenMark writes the file, and has the folder watch it. It is safe for concurrent
// use: the engine syncs its manifest while it opens.
func writeOpenMark(files vfs.FS, folder *folder, note string) error {
	folder.marking.Lock()
	defer folder.marking.Unlock()
	name := files.PathJoin(folder.dir, openMarkName)
	err := writeFile(files, name, func(own fs.FileInfo) []byte { return fmt.Appendf(nil, "%d\n%s", inode(own), note) })
	if err == nil {
		folder.add(name)
	}
	return err
}

// markOpen writes the file unless it is there, which it is after a crash. It first checks
// that the manifest is not an older one, and after an orderly stop, that the directory is
// as that stop left it.
func markOpen(options Options, folder *folder, fresh bool) (openMark, error) {
	mark, err := readOpenMark(options.FS, options.Dir)
	switch {
	case err != nil || fresh:
	case mark.found:
		err = checkManifest(options.FS, options.Dir, mark.note)
	default:
		err = checkList(options.FS, options.Dir)
	}
	if err == nil && !mark.found && !options.ReadOnly {
		err = writeOpenMark(options.FS, folder, "")
	}
	if err != nil && !errors.Is(err, tablestore.ErrDamaged) {
		err = fmt.Errorf("data directory %q cannot be opened: %w", options.Dir, err)
	}
	return mark, err
}

// markClosed replaces the file by the list of the store's files.
func markClosed(files vfs.FS, folder *folder) error {
	if err := folder.checkFiles(); err != nil {
		return err
	}
	if err := writeList(files, folder.dir); err != nil {
		return err
	}
	name := files.PathJoin(folder.dir, openMarkName)
	folder.drop(name)
	return removeFile(files, name)
}
