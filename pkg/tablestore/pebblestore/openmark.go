package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// openMarkName is the name of a file that exists in the directory while a store has it
// open, and after a crash. It holds its own inode.
const openMarkName = "OPEN"

// openMark is what the file said when the directory was opened.
type openMark struct {
	found  bool // The store was not closed in order.
	copied bool // The file is a copy: the directory was copied while a store had it open.
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
	noted, unknown := strconv.ParseUint(string(content), 10, 64)
	own := inode(info)
	return openMark{found: true, copied: unknown == nil && own != 0 && noted != own}, nil
}

// writeOpenMark writes the file, and has the folder watch it.
func writeOpenMark(files vfs.FS, folder *folder) error {
	name := files.PathJoin(folder.dir, openMarkName)
	err := writeFile(files, name, func(own fs.FileInfo) []byte { return strconv.AppendUint(nil, inode(own), 10) })
	if err == nil {
		folder.add(name)
	}
	return err
}

// markOpen writes the file unless it is there, which it is after a crash. After an
// orderly stop it first checks that the directory is as that stop left it.
func markOpen(options Options, folder *folder, fresh bool) (openMark, error) {
	mark, err := readOpenMark(options.FS, options.Dir)
	if err == nil && !mark.found && !fresh {
		err = checkList(options.FS, options.Dir)
	}
	if err == nil && !mark.found && !options.ReadOnly {
		err = writeOpenMark(options.FS, folder)
	}
	if err != nil && !errors.Is(err, ErrDamaged) {
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
