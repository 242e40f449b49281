package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// maxFileSize is the size of the largest protocol file, in bytes.
const maxFileSize = 1 << 20

// ErrNoProtocols is returned when a folder holds no protocol file.
var ErrNoProtocols = errors.New("no protocol file (*.yaml, *.yml or *.json)")

// Load reads all protocol files of a folder into one registry. Sub-folders,
// hidden files and files with other endings are left alone.
//
// It returns an error that wraps [fs.ErrNotExist] where there is no such folder,
// [ErrNoProtocols] where it holds no file, and otherwise one that joins every
// [FileError]: a folder is loaded whole or not at all.
func Load(dir string) (*Registry, error) { return load(os.DirFS(dir), dir) }

// LoadFS is like [Load] for the top folder of a file system, such as files that
// are compiled into the program.
func LoadFS(fsys fs.FS) (*Registry, error) { return load(fsys, "") }

func load(fsys fs.FS, dir string) (*Registry, error) {
	names, err := protocolFiles(fsys)
	if err != nil {
		return nil, fmt.Errorf("load protocols from %s: %w", folder(dir), err)
	}
	var files []parsedFile
	var faults []error
	for _, name := range names {
		file := readFile(fsys, name, filepath.Join(dir, name))
		for _, fault := range file.faults {
			faults = append(faults, fault)
		}
		files = append(files, file)
	}
	registry, clashes := combine(files)
	if faults = append(faults, clashes...); len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return registry, nil
}

// folder names the folder in an error.
func folder(dir string) string {
	if dir == "" {
		return "the built-in folder"
	}
	return dir
}

// protocolFiles lists the names of the protocol files, sorted.
func protocolFiles(fsys fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, pathError.Err // the caller names the folder
	}
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

// parsedFile is a file that was read, with what is wrong with it by itself.
type parsedFile struct {
	protocol *Protocol
	root     ast.Node
	faults   []*FileError
}

// readFile reads and checks one file.
func readFile(fsys fs.FS, name, file string) parsedFile {
	text, err := readLimited(fsys, name)
	if err != nil {
		return parsedFile{faults: []*FileError{{File: file, Message: err.Error()}}}
	}
	d, root, fault := decode(text)
	if fault != nil {
		fault.File = file
		return parsedFile{faults: []*FileError{fault}}
	}
	c := checker{file: file, root: root}
	protocol := c.protocol(d)
	slices.SortStableFunc(c.faults, func(a, b *FileError) int { return cmp.Compare(a.Line, b.Line) })
	return parsedFile{protocol: protocol, root: root, faults: c.faults}
}

// readLimited reads a file that is not too large.
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

// combine makes the registry and finds what files claim twice.
func combine(files []parsedFile) (*Registry, []error) {
	registry := &Registry{byRequestType: map[string]*Protocol{}}
	byID := map[string]*Protocol{}
	var clashes []error
	for _, file := range files {
		p := file.protocol
		if p == nil {
			continue
		}
		registry.protocols = append(registry.protocols, p)
		claim := func(claims map[string]*Protocol, name, what string, at path) {
			if other, taken := claims[name]; taken && other != p && name != "" {
				clashes = append(clashes, &FileError{
					File: p.File, Line: at.line(file.root),
					Message: fmt.Sprintf("the %s %q is already claimed by %s", what, name, other.File),
				})
			}
			claims[name] = p
		}
		claim(byID, p.ID, "protocol_id", path{"protocol_id"})
		for i, requestType := range p.RequestTypes {
			claim(registry.byRequestType, requestType, "request type", path{"request_types"}.item(i))
		}
	}
	return registry, clashes
}
