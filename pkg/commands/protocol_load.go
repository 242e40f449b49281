package commands

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// maxFileSize is the size of the largest protocol file, in bytes.
const maxFileSize = 1 << 20

// ErrNoProtocols is returned when a folder holds no protocol file.
var ErrNoProtocols = errors.New("no protocol file (*.yaml, *.yml or *.json)")

// LoadProtocols reads all protocol files of a folder into one registry. Sub-folders,
// hidden files and files with other endings are ignored.
//
// It returns an error that wraps [fs.ErrNotExist] if there is no such folder,
// [ErrNoProtocols] if the folder holds no file, and otherwise one that joins every
// [strictyaml.Error]: a folder is loaded whole or not at all.
func LoadProtocols(dir string) (*Protocols, error) {
	files := readProtocol(os.DirFS(dir), dir)
	return files.registry()
}

// LoadProtocolsFS is like [LoadProtocols] for the top folder of a file system, such as files that
// are compiled into the program.
func LoadProtocolsFS(fsys fs.FS) (*Protocols, error) {
	files := readProtocol(fsys, "")
	return files.registry()
}

// LoadProtocolPaths is like [LoadProtocols] for any number of folders and files, which are
// checked as one set. A file that is named itself is read with any ending,
// and a file that is named twice is read once.
//
// It returns an error that joins, for each path, what [LoadProtocols] returns.
func LoadProtocolPaths(paths ...string) (*Protocols, error) {
	if len(paths) == 0 {
		return nil, ErrNoProtocols
	}
	var all protocolsSnapshot
	for _, name := range paths {
		more := readProtocolPath(name)
		for _, file := range more.files {
			if !slices.ContainsFunc(all.files, func(have fileText) bool { return have.path == file.path }) {
				all.files = append(all.files, file)
			}
		}
		all.faults = append(all.faults, more.faults...)
	}
	return all.registry()
}

// readProtocolPath reads a folder, or a single file.
func readProtocolPath(name string) protocolsSnapshot {
	name = filepath.Clean(name)
	info, err := os.Stat(name)
	if err != nil {
		return unreadable(name, err)
	}
	if info.IsDir() {
		return readProtocol(os.DirFS(name), name)
	}
	content := strictyaml.Read(os.DirFS(filepath.Dir(name)), filepath.Base(name), maxFileSize)
	return protocolsSnapshot{files: []fileText{{content, name}}}
}

// readProtocol reads the protocol files of a folder, ordered by name.
func readProtocol(fsys fs.FS, dir string) (s protocolsSnapshot) {
	entries, err := fs.ReadDir(fsys, ".")
	for _, entry := range entries {
		name := entry.Name()
		switch filepath.Ext(name) {
		case ".yaml", ".yml", ".json":
			if !entry.IsDir() && !strings.HasPrefix(name, ".") {
				s.files = append(s.files, fileText{strictyaml.Read(fsys, name, maxFileSize), filepath.Join(dir, name)})
			}
		}
	}
	if err == nil && len(s.files) == 0 {
		err = ErrNoProtocols
	}
	if err != nil {
		return unreadable(cmp.Or(dir, "the built-in folder"), err)
	}
	return s
}

// unreadable returns the snapshot of a folder that cannot be listed.
func unreadable(name string, err error) protocolsSnapshot {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathError.Err // the message below names the path
	}
	return protocolsSnapshot{faults: []error{fmt.Errorf("load protocols from %s: %w", name, err)}}
}

// protocolsSnapshot is the content of a set of files. The watcher compares and loads the same
// bytes.
type protocolsSnapshot struct {
	files []fileText
	// faults are the folders that could not be read.
	faults []error
}

// fileText is one file.
type fileText struct {
	strictyaml.Content

	path string
}

// digest returns the SHA-256, in hexadecimal, of the names and contents of the files,
// and of the errors of reading them. It excludes the folder, so that it is the same
// on every machine.
func (s *protocolsSnapshot) digest() string {
	hash := sha256.New()
	for _, file := range s.files {
		fmt.Fprintf(hash, "%q %s\n", filepath.Base(file.path), strictyaml.Digest(file.Content))
	}
	for _, fault := range s.faults {
		fmt.Fprintf(hash, "%q\n", fault.Error())
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// registry turns the files into a registry, or returns all their faults: first those of
// eachSchema file, then the ids and request types that two files claim.
func (s *protocolsSnapshot) registry() (*Protocols, error) {
	registry := &Protocols{byRequestType: map[string]*Protocol{}, Services: map[string][]string{}, LoadedAt: time.Now(), digest: s.digest()}
	byID := map[string]*Protocol{}
	faults := slices.Clone(s.faults)
	var clashes []error
	for _, file := range s.files {
		p, root, found := file.parse()
		faults = append(faults, strictyaml.ByLine(found)...)
		if p == nil {
			continue
		}
		registry.protocols = append(registry.protocols, p)
		claim := func(claims map[string]*Protocol, name, what string, at schemaPath) {
			if other, taken := claims[name]; taken && other != p && name != "" {
				clashes = append(clashes, &strictyaml.Error{
					File: p.File, Line: at.line(root),
					Message: fmt.Sprintf("the %s %q is already claimed by %s", what, name, other.File),
				})
			}
			claims[name] = p
		}
		claim(byID, p.ID, "protocol_id", schemaPath{"protocol_id"})
		for i, requestType := range p.RequestTypes {
			claim(registry.byRequestType, requestType, "request type", schemaPath{"request_types"}.item(i))
		}
	}
	if faults = append(faults, clashes...); len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	for _, p := range registry.protocols {
		p.File, p.PayloadExample = filepath.Base(p.File), p.examplePayload()
		for i := range p.Steps {
			registry.Services[p.Steps[i].Service] = append(registry.Services[p.Steps[i].Service], p.Steps[i].Type)
		}
	}
	for service, stepTypes := range registry.Services {
		slices.Sort(stepTypes)
		registry.Services[service] = slices.Compact(stepTypes)
	}
	return registry, nil
}

// parse checks one file. The protocol is nil if the file cannot be read as one.
func (f *fileText) parse() (p *Protocol, root ast.Node, faults []*strictyaml.Error) {
	if f.Err != nil {
		return nil, nil, []*strictyaml.Error{{File: f.path, Message: f.Err.Error()}}
	}
	d, root, fault := decodeProtocol(f.Text)
	if fault != nil {
		fault.File = f.path
		return nil, nil, []*strictyaml.Error{fault}
	}
	c := protocolChecker{file: f.path, root: root}
	p = c.protocol(d)
	p.Digest = fmt.Sprintf("%x", sha256.Sum256(f.Text))
	return p, root, c.faults
}
