package pebblestore

import (
	"errors"
	"io"
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
func readOpenMark(files vfs.FS, folder *folder) (mark openMark, err error) {
	name := files.PathJoin(folder.dir, openMarkName)
	file, err := files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return mark, nil
	}
	if err != nil {
		return mark, err
	}
	content, err := io.ReadAll(io.LimitReader(file, 64))
	if err = errors.Join(err, file.Close()); err != nil {
		return mark, err
	}
	info, err := folder.stat(name)
	if err != nil {
		return mark, err
	}
	noted, unknown := strconv.ParseUint(string(content), 10, 64)
	own := inode(info)
	return openMark{found: true, copied: unknown == nil && own != 0 && noted != own}, nil
}

// writeOpenMark makes the file durable, and has the folder watch it.
func writeOpenMark(files vfs.FS, folder *folder) error {
	name := files.PathJoin(folder.dir, openMarkName)
	file, err := files.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	info, err := folder.stat(name)
	if err == nil {
		_, err = file.Write(strconv.AppendUint(nil, inode(info), 10))
	}
	if err := errors.Join(err, file.Sync(), file.Close(), syncDir(files, folder.dir)); err != nil {
		return err
	}
	folder.watch(openMarkName)
	return nil
}

// removeOpenMark removes the file durably.
func removeOpenMark(files vfs.FS, folder *folder) error {
	folder.drop(openMarkName)
	return errors.Join(files.Remove(files.PathJoin(folder.dir, openMarkName)), syncDir(files, folder.dir))
}
