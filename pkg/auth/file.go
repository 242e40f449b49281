package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"

	"github.com/lucius-project/lucius/pkg/reload"
)

// The prefixes of certificate names in a token file.
const (
	commonName = "cn:"
	uriName    = "uri:"
)

// File holds the callers of a token file. It is safe for concurrent use, except that
// only one Reload may run at a time.
type File struct {
	path    string
	current atomic.Pointer[directory]
}

// OpenFile reads a token file. It returns an error that wraps [fs.ErrNotExist]
// if there is none, or that joins a [reload.FileError] for each mistake.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	if err := f.Reload(); err != nil {
		return nil, err
	}
	return f, nil
}

// Reload reads the file again, and puts it into use if it is valid. Otherwise it
// keeps the callers in use and returns the error of [OpenFile].
func (f *File) Reload() error {
	_, load := f.Look()
	_, err := load()
	return err
}

// Look reads the file. It returns a hash of its content, or of the error of reading
// it, and a function that puts the content into use as [File.Reload] does. It is for
// a [reload.Watcher].
func (f *File) Look() (string, reload.Load) {
	text, err := readLimited(f.path)
	seen := digest(content{text, err})
	return seen, func() ([]any, error) {
		if err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}
		read, err := parse(f.path, text)
		if err != nil {
			return nil, err
		}
		read.digest = seen
		f.current.Store(read)
		return []any{"callers", len(read.callers)}, nil
	}
}

// InUse returns the hash of the text in use, comparable with [File.Look]'s.
func (f *File) InUse() string { return f.current.Load().digest }

// Callers returns how many callers are in use.
func (f *File) Callers() int { return len(f.current.Load().callers) }

// byToken returns the caller that has the token. The hashes are compared in
// constant time; which of them are compared depends on the first bytes of the hash
// of the token that was sent, which its sender knows.
func (f *File) byToken(token string) (Caller, bool) {
	if !wellFormed(token) {
		return Caller{}, false
	}
	now, sum := f.current.Load(), sha256.Sum256([]byte(token))
	for _, held := range now.tokens[bucketOf(sum)] {
		if subtle.ConstantTimeCompare(held.sum[:], sum[:]) == 1 {
			return now.callers[held.caller], true
		}
	}
	return Caller{}, false
}

// byCertificate returns the caller that has one of the names in the certificate,
// which must have been verified: a URI first, then the common name.
func (f *File) byCertificate(certificate *x509.Certificate) (Caller, bool) {
	names := make([]string, 0, len(certificate.URIs)+1)
	for _, uri := range certificate.URIs {
		names = append(names, uriName+uri.String())
	}
	if certificate.Subject.CommonName != "" {
		names = append(names, commonName+certificate.Subject.CommonName)
	}
	now := f.current.Load()
	known := slices.IndexFunc(names, func(name string) bool { _, ok := now.certificates[name]; return ok })
	if known < 0 {
		return Caller{}, false
	}
	caller := now.callers[now.certificates[names[known]]]
	caller.origin = ByCertificate
	return caller, true
}

// readLimited reads a file of limited size.
func readLimited(path string) (text []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // It was only read.
	text, err = io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFileSize {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errTooLarge}
	}
	return text, nil
}

// errTooLarge is returned for a file of more than maxFileSize bytes.
var errTooLarge = errors.New("is too large")

// content is a file's text, or the error of reading it.
type content struct {
	text []byte
	err  error
}

// digest returns a hash of the files' contents.
func digest(files ...content) string {
	hash := sha256.New()
	for _, file := range files {
		fmt.Fprintf(hash, "%x %q\n", sha256.Sum256(file.text), fmt.Sprint(file.err))
	}
	return hex.EncodeToString(hash.Sum(nil))
}
