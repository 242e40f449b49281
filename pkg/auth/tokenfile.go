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
func parseHash(text string) (sum [sha256.Size]byte, ok bool) {
	digits, ok := strings.CutPrefix(text, hashPrefix)
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
	// tokens are the hashes of all tokens, by their first bytes.
	tokens       map[[bucketSize]byte][]hashedToken
	certificates map[string]int // The index of the caller that has the name.
}

const bucketSize = 8

// hashedToken is a token's hash and the index of its caller.
type hashedToken struct {
	sum    [sha256.Size]byte
	caller int
}

// byHash returns the caller that has the token with that hash. Hashes are compared in
// constant time; which of them are compared depends on the first bytes of the hash of
// the token that was sent, which its sender knows.
func (d *directory) byHash(sum [sha256.Size]byte) (Caller, bool) {
	for _, held := range d.tokens[[bucketSize]byte(sum[:])] {
		if subtle.ConstantTimeCompare(held.sum[:], sum[:]) == 1 {
			return d.callers[held.caller], true
		}
	}
	return Caller{}, false
}

// The limits of a token file.
const (
	maxFileSize    = 4 << 20 // bytes
	maxCallers     = 10_000
	maxCredentials = 16 // tokens, and certificates, of one caller
	maxGrants      = 100
	fileVersion    = "1"
)

// The keys of a token file, of a caller in it, and of a role of a caller.
var (
	fileKeys   = []string{"version", "callers"}
	callerKeys = []string{"name", "tokens", "certificates", "roles"}
	grantKeys  = []string{"role", "tenants", "services"}
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

// parse reads a token file. The error joins a [strictyaml.Error] for each mistake, by
// line.
func parse(file string, text []byte) (*directory, error) {
	r := &reader{file: file, taken: map[string]int{}}
	d := &directory{tokens: map[[bucketSize]byte][]hashedToken{}, certificates: map[string]int{}}
	r.document(text, func(top value) {
		members := r.members(top, fileKeys)
		if version, ok := r.text(members["version"]); ok && version != fileVersion {
			r.fail(members["version"], "is %q and must be %s", version, fileVersion)
		}
		if members["callers"].absent() {
			r.fail(members["callers"], "must name at least one caller")
		}
		for i, v := range r.list(members["callers"], maxCallers) {
			d.callers = append(d.callers, r.caller(v, i, d))
		}
	})
	if len(r.faults) > 0 {
		return nil, errors.Join(strictyaml.ByLine(r.faults)...)
	}
	return d, nil
}

// caller reads the i-th caller of the file, and enters its credentials into the
// directory.
func (r *reader) caller(v value, i int, d *directory) Caller {
	members := r.members(v, callerKeys)
	name, ok := r.text(members["name"])
	if ok && !namePattern.MatchString(name) {
		r.fail(members["name"], "is %q and must be %s", name, nameRule)
	}
	if wellFormed(name) {
		r.fail(members["name"], "is a token: its hash belongs under tokens, and the name is in logs")
	}
	if ok {
		r.claim(members["name"], "name "+name, i)
	}
	tokens := r.list(members["tokens"], maxCredentials)
	certificates := r.list(members["certificates"], maxCredentials)
	if members["tokens"].absent() && members["certificates"].absent() {
		r.fail(members["tokens"], "is required, or else certificates")
	}
	for _, v := range tokens {
		text, ok := r.text(v)
		sum, valid := parseHash(text)
		switch {
		case valid:
			r.claim(v, fmt.Sprintf("token %x", sum), i)
			bucket := [bucketSize]byte(sum[:])
			d.tokens[bucket] = append(d.tokens[bucket], hashedToken{sum, i})
		case ok: // The text is not quoted: it could be the token itself.
			r.fail(v, "must be %s and 64 hexadecimal digits, as `lucius token new` prints it", hashPrefix)
		}
	}
	for _, v := range certificates {
		text, ok := r.text(v)
		kind, name, _ := strings.Cut(text, ":")
		switch {
		case !ok:
		case kind+":" != commonName && kind+":" != uriName || strings.TrimSpace(name) == "":
			r.fail(v, "is %q and must be %s and the subject's common name, or %s and a URI of the subject", text, commonName, uriName)
		default:
			r.claim(v, "certificate "+text, i)
			d.certificates[text] = i
		}
	}
	return NewCaller(name, ByToken, r.grants(members["roles"])...)
}

// claim records that the i-th caller has the value, which no other may have.
func (r *reader) claim(v value, key string, i int) {
	if other, ok := r.taken[key]; ok {
		r.fail(v, "is the same as one of callers[%d]", other)
		return
	}
	r.taken[key] = i
}

// grants reads the roles of a caller.
func (r *reader) grants(v value) []Grant {
	if v.absent() {
		r.fail(v, "must list at least one role")
	}
	var grants []Grant
	for _, v := range r.list(v, maxGrants) {
		before := len(r.faults)
		members := r.members(v, grantKeys)
		role, _ := r.text(members["role"])
		grant := Grant{Role: Role(role)}
		tenants, services := members["tenants"], members["services"]
		if text, _ := tenants.scalar(); text == Everyone {
			grant.All = true
		} else if tenants.absent() {
			r.fail(tenants, "is required: a list of tenants, or %q for all", Everyone)
		} else {
			grant.Tenants = r.texts(tenants, MaxListed)
		}
		if services.node != nil && services.absent() {
			r.fail(services, "must not be empty") // Only a missing list means all.
		}
		grant.Services = r.texts(services, MaxListed)
		if err := grant.Validate(); err != nil && len(r.faults) == before {
			r.fail(v, "is not valid: %v", err)
		}
		grants = append(grants, grant)
	}
	return grants
}
