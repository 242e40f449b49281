// Package strictyaml reads the files that an operator writes: token files, certificates,
// protocols. A file is read whole and hashed, so that a watcher can tell whether it has
// changed, and every fault in it is an [Error] that names file and line.
package strictyaml

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agnivade/levenshtein"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Error is a fault in a file and its line.
type Error struct {
	// File is the path of the file, or empty if no file could be read.
	File string `json:"file,omitempty"`
	// Line counts from 1; 0 means the whole file.
	Line    int    `json:"line,omitempty"`
	Message string `json:"message"`
}

// Error returns file, line and message in the format that editors understand.
func (e *Error) Error() string {
	switch {
	case e.File == "":
		return e.Message
	case e.Line == 0:
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
}

// ByLine returns the faults of one file in the order of their lines.
func ByLine(faults []*Error) []error {
	errs := make([]error, len(faults))
	for i, fault := range slices.SortedStableFunc(slices.Values(faults), func(a, b *Error) int { return a.Line - b.Line }) {
		errs[i] = fault
	}
	return errs
}

// Content is the text of a file, or the error of reading it.
type Content struct {
	Text []byte
	Err  error
}

// Open reads a file of at most limit bytes. The error names the path.
func Open(path string, limit int) Content {
	content := Read(os.DirFS(filepath.Dir(path)), filepath.Base(path), limit)
	if known, ok := errors.AsType[*fs.PathError](content.Err); ok {
		content.Err = &fs.PathError{Op: "open", Path: path, Err: known.Err}
	} else if content.Err != nil {
		content.Err = &fs.PathError{Op: "read", Path: path, Err: content.Err}
	}
	return content
}

// Read is [Open] in a file system. A link is followed. What is no regular file is not
// opened: opening a named pipe would wait for its writer.
func Read(fsys fs.FS, name string, limit int) Content {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return Content{Err: err}
	}
	if !info.Mode().IsRegular() {
		return Content{Err: fmt.Errorf("is not a regular file (%s): a file or a link to one is expected", info.Mode().Type())}
	}
	file, err := fsys.Open(name)
	if err != nil {
		return Content{Err: err}
	}
	defer func() { _ = file.Close() }() // It was only read.
	text, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("is larger than %d bytes", limit)
	}
	if err != nil {
		return Content{Err: err}
	}
	return Content{Text: text}
}

// Digest returns a hash of the contents, errors included.
func Digest(contents ...Content) string {
	hash := sha256.New()
	for _, content := range contents {
		fmt.Fprintf(hash, "%x %q\n", sha256.Sum256(content.Text), fmt.Sprint(content.Err))
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// Decode decodes a text that holds one document into a struct that has each of its keys. First
// it calls check, unless that is nil, with the root of the document. A fault names the path of
// the value, and for an unknown key the one that is nearest by its letters.
//
// The library that reads it panics on some malformed texts, such as a tag without a value; a
// reload survives that. Texts that would take all memory, by their depth or their aliases, are
// refused.
func Decode(text []byte, into any, check func(root ast.Node) error) (fault *Error) {
	defer func() {
		if recover() != nil {
			fault = &Error{Message: "is not valid YAML"}
		}
	}()
	if !utf8.Valid(text) {
		return &Error{Message: "is not UTF-8"}
	}
	tokens := lexer.Tokenize(string(text))
	if fault := tooDeep(tokens); fault != nil {
		return fault
	}
	file, err := parser.Parse(tokens, 0)
	switch {
	case err != nil:
		fault = place(err, nil, nil)
		fault.Message = "is not valid YAML: " + fault.Message
		return fault
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return &Error{Message: "is empty"}
	case len(file.Docs) > 1:
		return &Error{Message: "has more than one document; a file holds one"}
	}
	if (&expansion{anchors: map[string]int{}}).size(file.Docs[0].Body) > maxExpanded {
		return &Error{Message: fmt.Sprintf("has aliases that repeat its values to more than %d bytes", maxExpanded)}
	}
	root := file.Docs[0].Body
	if check != nil {
		if err := check(root); err != nil {
			return place(err, root, into)
		}
	}
	if err := yaml.NodeToValue(root, into, yaml.Strict()); err != nil {
		return place(err, root, into)
	}
	return nil
}

// The limits of a text, beyond which a few kilobytes of it take gigabytes to parse.
const (
	maxDepth    = 128     // Of nested [ ] and { }.
	maxColumn   = 1000    // Of a - or ? outside of them; each level takes at least two columns.
	maxExpanded = 8 << 20 // Bytes of all values, with those that aliases repeat.
)

// tooDeep returns the fault of a text whose values are nested deeper than the limits.
func tooDeep(tokens token.Tokens) *Error {
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType:
			if depth <= 0 && t.Position.Column > maxColumn {
				return &Error{Line: t.Position.Line, Message: fmt.Sprintf("is nested beyond column %d", maxColumn)}
			}
		default:
		}
		if depth > maxDepth {
			return &Error{Line: t.Position.Line, Message: fmt.Sprintf("is nested deeper than %d levels", maxDepth)}
		}
	}
	return nil
}

// expansion measures a document with the values that aliases repeat.
type expansion struct {
	anchors map[string]int // The sizes of the values so far that have a name.
}

// size returns about how many bytes a value has, and at least maxExpanded + 1 if those are
// more than maxExpanded.
func (e *expansion) size(node ast.Node) (sum int) {
	switch n := node.(type) {
	case nil:
		return 0
	case *ast.AnchorNode:
		sum = e.size(n.Value)
		e.anchors[n.Name.GetToken().Value] = sum
	case *ast.AliasNode:
		sum = e.anchors[n.Value.GetToken().Value]
	case *ast.TagNode:
		sum = e.size(n.Value)
	case *ast.MappingNode:
		for _, member := range n.Values {
			sum = min(sum+e.size(member), maxExpanded+1)
		}
	case *ast.MappingValueNode:
		sum = e.size(n.Key) + e.size(n.Value)
	case *ast.MappingKeyNode:
		sum = e.size(n.Value)
	case *ast.SequenceNode:
		for _, entry := range n.Values {
			sum = min(sum+e.size(entry), maxExpanded+1)
		}
	case *ast.LiteralNode:
		sum = len(n.Value.Value)
	default:
		sum = len(n.GetToken().Value)
	}
	return min(sum+1, maxExpanded+1)
}

// place returns the fault that err describes, with its line and the first line of the message:
// the others quote the file. It adds the path of the value below the root, unless the message
// names the top key of it, and to an unknown key the nearest one of the struct.
func place(err error, root ast.Node, into any) *Error {
	fault := &Error{Message: err.Error()}
	var at *token.Token
	if located, ok := errors.AsType[yaml.Error](err); ok {
		fault.Message = located.GetMessage()
		if at = located.GetToken(); at != nil && at.Position != nil {
			fault.Line = at.Position.Line
		}
	}
	fault.Message, _, _ = strings.Cut(fault.Message, "\n")
	if _, unknown := errors.AsType[*yaml.UnknownFieldError](err); unknown && at != nil && at.Value != "" {
		if near := nearest(at.Value, keysOf(reflect.TypeOf(into), nil)); near != "" {
			fault.Message += fmt.Sprintf(", did you mean %q?", near)
		}
	}
	path := pathOf(root, at)
	if top, _, _ := strings.Cut(strings.ReplaceAll(path, "[", "."), "."); !strings.Contains(fault.Message, top) {
		fault.Message = path + ": " + fault.Message
	}
	return fault
}

// pathOf returns the path of the value or the key with that token, such as steps[1].retry. It
// returns "" if there is none, or if it is the root.
func pathOf(root ast.Node, at *token.Token) (path string) {
	if root == nil || at == nil {
		return ""
	}
	for _, pair := range ast.Filter(ast.MappingValueType, root) {
		of, ok := pair.(*ast.MappingValueNode)
		if ok && (of.Key.GetToken() == at || of.Value.GetToken() == at) {
			return strings.NewReplacer("\n", " ", "\r", " ").Replace(strings.TrimPrefix(of.Key.GetPath(), "$."))
		}
	}
	return ""
}

// keysOf adds the keys of the structs in a type to the known ones.
func keysOf(t reflect.Type, known []string) []string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return keysOf(t.Elem(), known)
	case reflect.Struct:
		for field := range t.Fields() {
			if !field.IsExported() {
				continue
			}
			key, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			if known = keysOf(field.Type, known); key != "" {
				known = append(known, key)
			}
		}
	default:
	}
	return known
}

// longestKey bounds the words that are compared: the time grows with their length.
const longestKey = 64

// nearest returns the word that differs from this one by the fewest letters, at most two.
func nearest(word string, words []string) (near string) {
	if len(word) > longestKey {
		return ""
	}
	least := 3
	for _, known := range words {
		if distance := levenshtein.ComputeDistance(word, known); distance < least {
			near, least = known, distance
		}
	}
	return near
}
