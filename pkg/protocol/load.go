package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxFileSize is the size of the largest protocol file, in bytes.
const maxFileSize = 1 << 20

// ErrNoProtocols is returned when a folder holds no protocol file.
var ErrNoProtocols = errors.New("no protocol file (*.yaml, *.yml or *.json)")

// Load reads all protocol files of a folder into one registry. Sub-folders,
// hidden files and files with other endings are ignored.
//
// It returns an error that wraps [fs.ErrNotExist] if there is no such folder,
// [ErrNoProtocols] if the folder holds no file, and otherwise one that joins every
// [reload.FileError]: a folder is loaded whole or not at all.
func Load(dir string) (*Registry, error) { return load(os.DirFS(dir), dir) }

// LoadFS is like [Load] for the top folder of a file system, such as files that
// are compiled into the program.
func LoadFS(fsys fs.FS) (*Registry, error) { return load(fsys, "") }

func load(fsys fs.FS, dir string) (*Registry, error) {
	files := read(fsys, dir)
	return files.registry()
}

// LoadPaths is like [Load] for any number of folders and files, which are
// checked as one set. A file that is named itself is read with any ending,
// and a file that is named twice is read once.
//
// It returns an error that joins, for each path, what [Load] returns.
func LoadPaths(paths ...string) (*Registry, error) {
	if len(paths) == 0 {
		return nil, ErrNoProtocols
	}
	var all snapshot
	for _, name := range paths {
		all.add(readPath(name))
	}
	return all.registry()
}

// readPath reads a folder, or a single file.
func readPath(name string) snapshot {
	name = filepath.Clean(name)
	info, err := os.Stat(name)
	if err != nil {
		return unreadable(name, err)
	}
	if info.IsDir() {
		return read(os.DirFS(name), name)
	}
	text, err := readLimited(os.DirFS(filepath.Dir(name)), filepath.Base(name))
	return snapshot{files: []fileText{{path: name, text: text, err: err}}}
}

// read reads the protocol files of a folder.
func read(fsys fs.FS, dir string) snapshot {
	names, err := protocolFiles(fsys)
	if err != nil {
		return unreadable(cmp.Or(dir, "the built-in folder"), err)
	}
	var s snapshot
	for _, name := range names {
		text, err := readLimited(fsys, name)
		s.files = append(s.files, fileText{path: filepath.Join(dir, name), text: text, err: err})
	}
	return s
}

// unreadable returns the snapshot of a folder that cannot be listed.
func unreadable(name string, err error) snapshot {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathError.Err // it is named here
	}
	return snapshot{faults: []error{fmt.Errorf("load protocols from %s: %w", name, err)}}
}

// protocolFiles lists the names of the protocol files, sorted.
func protocolFiles(fsys fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		name := entry.Name()
		switch filepath.Ext(name) {
		case ".yaml", ".yml", ".json":
			if !entry.IsDir() && !strings.HasPrefix(name, ".") {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return nil, ErrNoProtocols
	}
	return names, nil
}

// readLimited reads a file of limited size.
func readLimited(fsys fs.FS, name string) ([]byte, error) {
	file, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFileSize {
		return nil, fmt.Errorf("is larger than %d bytes", maxFileSize)
	}
	return text, nil
}
