package protocol

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/reload"
)

// snapshot is the content of a set of files. The watcher compares and loads the same
// bytes.
type snapshot struct {
	files []fileText
	// faults are the folders that could not be read.
	faults []error
}

// fileText is the text of one file, or the error of reading it.
type fileText struct {
	path string
	text []byte
	err  error
}

// add appends another snapshot, except files that are in this one already.
func (s *snapshot) add(other snapshot) {
	for _, file := range other.files {
		if !slices.ContainsFunc(s.files, func(have fileText) bool { return have.path == file.path }) {
			s.files = append(s.files, file)
		}
	}
	s.faults = append(s.faults, other.faults...)
}

// digest returns the SHA-256, in hexadecimal, of the names and contents of the files,
// and of the errors of reading them. It excludes the folder, so that it is the same
// on every machine.
func (s *snapshot) digest() string {
	hash := sha256.New()
	for _, file := range s.files {
		fmt.Fprintf(hash, "%q %s %q\n", filepath.Base(file.path), digest(file.text), fmt.Sprint(file.err))
	}
	for _, fault := range s.faults {
		fmt.Fprintf(hash, "%q\n", fault.Error())
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// digest returns the SHA-256 of a text, in hexadecimal.
func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// registry turns the files into a registry, or returns all their faults.
func (s *snapshot) registry() (*Registry, error) {
	faults := slices.Clone(s.faults)
	var files []parsedFile
	for _, text := range s.files {
		file := text.parse()
		for _, fault := range file.faults {
			faults = append(faults, fault)
		}
		files = append(files, file)
	}
	registry, clashes := combine(files)
	if faults = append(faults, clashes...); len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	registry.digest = s.digest()
	return registry, nil
}

// parsedFile is a parsed file with its own faults.
type parsedFile struct {
	protocol *Protocol
	root     ast.Node
	faults   []*reload.FileError
}

// parse checks one file.
func (f *fileText) parse() parsedFile {
	if f.err != nil {
		return parsedFile{faults: []*reload.FileError{{File: f.path, Message: f.err.Error()}}}
	}
	d, root, fault := decode(f.text)
	if fault != nil {
		fault.File = f.path
		return parsedFile{faults: []*reload.FileError{fault}}
	}
	c := checker{file: f.path, root: root}
	protocol := c.protocol(d)
	protocol.Digest = digest(f.text)
	slices.SortStableFunc(c.faults, func(a, b *reload.FileError) int { return cmp.Compare(a.Line, b.Line) })
	return parsedFile{protocol: protocol, root: root, faults: c.faults}
}

// combine builds the registry and finds ids and request types that two files claim.
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
				clashes = append(clashes, &reload.FileError{
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
