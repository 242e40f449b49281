package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// A token is TokenPrefix, 256 random bits and their CRC-32, both in base 32. The
// prefix and the checksum let scanners of source code recognise a leaked token with
// certainty; the checksum adds no protection.
const (
	TokenPrefix = "lucius_"
	tokenBytes  = 32        // random bytes in a token
	hashPrefix  = "sha256:" // of a hash in a token file
)

// tokenText is the encoding of tokens: one case, no padding, and a double click
// selects the whole token.
var tokenText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewToken returns a new random token. Show it to its owner once and do not store it:
// a token file holds its [HashToken].
func NewToken() string {
	secret := make([]byte, tokenBytes)
	_, _ = rand.Read(secret) // It never fails: the process ends first.
	return TokenPrefix + tokenText.EncodeToString(secret) + checksum(secret)
}

// checksum returns the CRC-32 of the secret, in seven characters.
func checksum(secret []byte) string {
	return tokenText.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(secret)))
}

// wellFormed reports whether the text has the form of a token of [NewToken].
func wellFormed(token string) bool {
	encoded, ours := strings.CutPrefix(token, TokenPrefix)
	size := tokenText.EncodedLen(tokenBytes)
	if !ours || len(encoded) < size {
		return false
	}
	secret, err := tokenText.DecodeString(encoded[:size])
	return err == nil && subtle.ConstantTimeCompare([]byte(encoded[size:]), []byte(checksum(secret))) == 1
}

// HashToken returns the entry for a token in a token file: sha256: and the SHA-256 of
// the whole token in hexadecimal.
//
// A fast hash is right here. Slow hashes such as bcrypt protect secrets that people
// choose, because an attacker who has the file can try the likely ones. Guessing 256
// random bits is hopeless at any speed, and a slow hash would only let clients with
// wrong tokens keep the server busy. So tokens that [NewToken] did not create are
// refused.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// parseHash reads what [HashToken] writes.
func parseHash(written string) (sum [sha256.Size]byte, ok bool) {
	digits, ok := strings.CutPrefix(written, hashPrefix)
	if !ok || len(digits) != hex.EncodedLen(len(sum)) {
		return sum, false
	}
	_, err := hex.Decode(sum[:], []byte(digits))
	return sum, err == nil
}

// File holds the callers of a token file. It is safe for concurrent use, except that
// only one function of [File.Look] may run at a time.
type File struct {
	path    string
	current atomic.Pointer[directory]
}

// OpenFile reads a token file. It returns an error that wraps [fs.ErrNotExist]
// if there is none, or that joins a [strictyaml.Error] for each mistake.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	_, load := f.Look()
	if _, err := load(); err != nil {
		return nil, err
	}
	return f, nil
}

// Look reads the file, for a watcher: it returns a hash of the content, or of
// the error of reading it. The function puts the content into use, or returns the error
// of [OpenFile] and changes nothing.
func (f *File) Look() (string, func() ([]any, error)) {
	file := strictyaml.Open(f.path, maxFileSize)
	seen := strictyaml.Digest(file)
	return seen, func() ([]any, error) {
		if file.Err != nil {
			return nil, fmt.Errorf("token file: %w", file.Err)
		}
		read, err := parse(f.path, file.Text)
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

// byToken returns the caller that has the token. A nil File has none.
func (f *File) byToken(token string) (Caller, error) {
	if f != nil && wellFormed(token) {
		if caller, ok := f.current.Load().byHash(sha256.Sum256([]byte(token))); ok {
			return caller, nil
		}
	}
	return Caller{}, errUnknownToken
}

// byCertificate returns the caller that has one of the names in a client certificate,
// which the handshake has verified: a URI first, then the common name. A nil File has
// none.
func (f *File) byCertificate(certificate *x509.Certificate) (Caller, error) {
	if time.Now().After(certificate.NotAfter) {
		return Caller{}, errors.New("the client certificate has expired") // Since the handshake.
	}
	if f != nil {
		var names []string
		for _, uri := range certificate.URIs {
			names = append(names, uriName+uri.String())
		}
		if certificate.Subject.CommonName != "" {
			names = append(names, commonName+certificate.Subject.CommonName)
		}
		now := f.current.Load()
		for _, name := range names {
			if i, known := now.certificates[name]; known {
				caller := now.callers[i]
				caller.origin = ByCertificate
				return caller, nil
			}
		}
	}
	return Caller{}, errors.New("no caller has a name of the client certificate")
}

// directory holds the callers of one token file. It is immutable.
type directory struct {
	digest  string // Of the file's text.
	callers []Caller
	// tokens and certificates hold the index of the caller that has the credential. Timing a
	// lookup reveals at most a prefix of a token's hash, from which the token cannot be found.
	tokens       map[[sha256.Size]byte]int
	certificates map[string]int
}

// byHash returns the caller that has the token with that hash.
func (d *directory) byHash(sum [sha256.Size]byte) (Caller, bool) {
	i, known := d.tokens[sum]
	if !known {
		return Caller{}, false
	}
	return d.callers[i], true
}

// The limits of a token file.
const (
	maxFileSize    = 4 << 20 // bytes
	maxCallers     = 10_000
	maxCredentials = 16 // tokens, and certificates, of one caller
	maxGrants      = 100
	fileVersion    = "1"
)

// The prefixes of certificate names in a token file.
const (
	commonName = "cn:"
	uriName    = "uri:"
)

// namePattern matches the name of a caller. It excludes the colon, so that no name
// equals that of an issuer's subject.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9._@/-]{1,128}$`)

const nameRule = "1 to 128 of the characters A-Z a-z 0-9 . _ @ / -"

// tokenFile is the content of a token file.
type tokenFile struct {
	Version scalar        `yaml:"version"`
	Callers []callerEntry `yaml:"callers"`
}

// callerEntry is a caller of a token file, at that line.
type callerEntry struct {
	line         int
	Name         scalar   `yaml:"name"`
	Tokens       []scalar `yaml:"tokens"`
	Certificates []scalar `yaml:"certificates"`
	Roles        []struct {
		Role     scalar   `yaml:"role"`
		Tenants  tenants  `yaml:"tenants"`
		Services []scalar `yaml:"services"`
	} `yaml:"roles"`
}

// UnmarshalYAML implements [yaml.NodeUnmarshaler].
func (c *callerEntry) UnmarshalYAML(node ast.Node) error {
	type plain callerEntry
	c.line = node.GetToken().Position.Line
	return yaml.NodeToValue(node, (*plain)(c), yaml.Strict())
}

// scalar is a single value as it is written: the library would read the tenant 010 as 8.
type scalar string

// UnmarshalYAML implements [yaml.NodeUnmarshaler].
func (s *scalar) UnmarshalYAML(node ast.Node) error {
	switch node := node.(type) {
	case *ast.StringNode:
		*s = scalar(node.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		*s = scalar(node.GetToken().Value)
	default:
		return &yaml.SyntaxError{Message: "must be a single value; put it in quotes if it has a colon", Token: node.GetToken()}
	}
	return nil
}

// tenants are a list of tenants, or all of them.
type tenants struct {
	all    bool
	listed []scalar
}

// UnmarshalYAML implements [yaml.NodeUnmarshaler].
func (t *tenants) UnmarshalYAML(node ast.Node) error {
	if star, ok := node.(*ast.StringNode); ok && star.Value == Everyone {
		t.all = true
		return nil
	}
	return yaml.NodeToValue(node, &t.listed)
}

// texts returns the values as texts.
func texts(values []scalar) (texts []string) {
	for _, value := range values {
		texts = append(texts, string(value))
	}
	return texts
}

// parse reads a token file. The error joins a [strictyaml.Error] for each caller that has a
// mistake, with its line; one about the form of the file hides the others.
func parse(file string, content []byte) (*directory, error) {
	var read tokenFile
	first := 0
	fault := strictyaml.Decode(content, &read, func(root ast.Node) error {
		// The library reads no value as an absent key, and absent services are all services.
		for _, none := range append(ast.Filter(ast.NullType, root), ast.Filter(ast.AliasType, root)...) {
			return &yaml.SyntaxError{Message: "a key or an entry has no value of its own", Token: none.GetToken()}
		}
		first = root.GetToken().Position.Line
		return nil
	})
	var faults []error
	fail := func(line int, message string) { // It masks a misplaced token in the message.
		faults = append(faults, &strictyaml.Error{File: file, Line: line, Message: Printable(message)})
	}
	d := &directory{tokens: map[[sha256.Size]byte]int{}, certificates: map[string]int{}}
	switch {
	case fault != nil:
		fail(fault.Line, fault.Message)
		read.Callers = nil // It may hold some of them.
	case read.Version != fileVersion:
		fail(first, fmt.Sprintf("version is %q and must be %s", read.Version, fileVersion))
	case len(read.Callers) == 0 || len(read.Callers) > maxCallers:
		fail(first, fmt.Sprintf("callers must name 1 to %d callers", maxCallers))
	}
	names := map[scalar]bool{}
	for i := range read.Callers {
		entry := &read.Callers[i]
		caller, err := d.enter(entry, i)
		if err == nil && names[entry.Name] {
			err = errors.New("has the name of another caller")
		}
		if err != nil {
			fail(entry.line, fmt.Sprintf("callers[%d] %v", i, err))
		}
		names[entry.Name] = true
		d.callers = append(d.callers, caller)
	}
	return d, errors.Join(faults...)
}

// enter checks the i-th caller of the file, and enters its credentials into the directory.
func (d *directory) enter(entry *callerEntry, i int) (Caller, error) {
	switch name := string(entry.Name); {
	case wellFormed(name):
		return Caller{}, errors.New("has a token as its name: its hash belongs under tokens, and the name is in logs")
	case !namePattern.MatchString(name):
		return Caller{}, fmt.Errorf("has the name %q, which must be %s", name, nameRule)
	case len(entry.Tokens)+len(entry.Certificates) == 0 || len(entry.Tokens) > maxCredentials || len(entry.Certificates) > maxCredentials:
		return Caller{}, fmt.Errorf("must have tokens or certificates, at most %d of each", maxCredentials)
	case len(entry.Roles) == 0 || len(entry.Roles) > maxGrants:
		return Caller{}, fmt.Errorf("must have 1 to %d roles", maxGrants)
	}
	for j, token := range entry.Tokens {
		sum, valid := parseHash(string(token))
		if !valid { // The text is not quoted: it could be the token itself.
			return Caller{}, fmt.Errorf("must have as tokens[%d] %s and 64 hexadecimal digits, as `lucius token new` prints it",
				j, hashPrefix)
		}
		if _, taken := d.tokens[sum]; taken {
			return Caller{}, fmt.Errorf("has as tokens[%d] one that is in the file already", j)
		}
		d.tokens[sum] = i
	}
	for _, certificate := range texts(entry.Certificates) {
		kind, subject, _ := strings.Cut(certificate, ":")
		if kind+":" != commonName && kind+":" != uriName || strings.TrimSpace(subject) == "" {
			return Caller{}, fmt.Errorf("has the certificate %q, which must be %s and the subject's common name, "+
				"or %s and a URI of the subject", certificate, commonName, uriName)
		}
		if _, taken := d.certificates[certificate]; taken {
			return Caller{}, fmt.Errorf("has the certificate %q, which is in the file already", certificate)
		}
		d.certificates[certificate] = i
	}
	var grants []Grant
	for j, role := range entry.Roles {
		grant := Grant{Role: Role(role.Role), All: role.Tenants.all, Tenants: texts(role.Tenants.listed), Services: texts(role.Services)}
		err := grant.Validate()
		if role.Services != nil && len(role.Services) == 0 {
			err = errors.New("services must not be empty")
		}
		if err != nil {
			return Caller{}, fmt.Errorf("has as roles[%d] one that is not valid: %w", j, err)
		}
		grants = append(grants, grant)
	}
	return NewCaller(string(entry.Name), ByToken, grants...), nil
}
