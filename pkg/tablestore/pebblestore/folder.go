package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// lockName is the file that a store keeps locked while it has the directory
// open.
const lockName = "LOCK"

// folder checks that the data directory is still the one that was opened. An
// open file outlives its name: writes to a removed or moved directory succeed,
// and new files end up in the directory that is at the path now.
type folder struct {
	files vfs.FS
	dir   string // Where the engine finds its files.
	path  string // Where the next start will look: dir before links are resolved.
	stat  func(name string) (fs.FileInfo, error)
	same  func(a, b fs.FileInfo) bool

	lockPath string
	lock     fs.FileInfo // The lock file that this process holds.

	marking sync.Mutex // Held while the OPEN mark is replaced: two replacements share its new name.

	mu sync.Mutex
	// names are the store's files. invariant: name ∈ names ⇒ the file is in dir,
	// as names grows after a file is made and shrinks before it is removed.
	names map[string]bool
}

// newFolder returns the folder of a directory that is locked. Only the
// operating system's file system can tell two files of one name apart.
func newFolder(files vfs.FS, dir, path string) (*folder, error) {
	d := &folder{
		files: files, dir: dir, path: path, lockPath: files.PathJoin(path, lockName), names: map[string]bool{},
		stat: func(name string) (fs.FileInfo, error) { return files.Stat(name) },
		same: func(fs.FileInfo, fs.FileInfo) bool { return true },
	}
	if files == vfs.Default {
		d.stat, d.same = os.Stat, os.SameFile
	}
	var err error
	if d.lock, err = d.stat(d.lockPath); err != nil {
		return nil, fmt.Errorf("data directory %q: %w", path, err)
	}
	return d, nil
}

// check returns [tablestore.ErrLost] unless the path still leads to the lock file that
// this process holds. It costs one system call.
func (d *folder) check() error { return d.checkFile(d.lockPath, d.lock) }

// checkFile returns [tablestore.ErrLost] unless the name still leads to the file that was
// opened by it.
func (d *folder) checkFile(name string, opened fs.FileInfo) error {
	info, err := d.stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.lost(d.files.PathBase(name), "is missing")
	case err != nil:
		return d.lost(d.files.PathBase(name), "cannot be read: "+err.Error())
	case !d.same(info, opened):
		return d.lost(d.files.PathBase(name), "is another file")
	}
	return nil
}

// checkFiles returns [tablestore.ErrLost] unless check succeeds and the directory holds
// every file of the store.
func (d *folder) checkFiles() error {
	if err := d.check(); err != nil {
		return err
	}
	expected := d.all()
	list, err := d.files.List(d.dir)
	if err != nil {
		return d.lost("the list of files", "cannot be read: "+err.Error())
	}
	for _, name := range list {
		delete(expected, name)
	}
	for name := range expected {
		// The engine may have removed the file since the list was read.
		if _, err := d.stat(d.files.PathJoin(d.dir, name)); errors.Is(err, fs.ErrNotExist) && d.all()[name] {
			return d.lost(name, "is missing")
		}
	}
	return nil
}

func (d *folder) lost(file, why string) error {
	return fmt.Errorf("%w: %s %s in %q; stop this process, put the directory back as it was or restore a backup, and start again",
		tablestore.ErrLost, file, why, d.path)
}

// all returns a copy of the names.
func (d *folder) all() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.names)
}

// add is called after files were made or found in the directory.
func (d *folder) add(names ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		if base := d.files.PathBase(name); d.files.PathDir(name) == d.dir && isStoreFile(base) {
			d.names[base] = true
		}
	}
}

// drop is called before a file is removed from the directory.
func (d *folder) drop(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, d.files.PathBase(name))
}
