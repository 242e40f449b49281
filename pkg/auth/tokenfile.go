package auth

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/reload"
)

// The limits of a token file.
const (
	maxFileSize    = 4 << 20 // bytes
	maxCallers     = 10_000
	maxCredentials = 16 // tokens, and certificates, of one caller
	maxGrants      = 100
	fileVersion    = "1"
)

// The keys of a token file, and of a caller in it.
var (
	fileKeys   = []string{"version", "callers"}
	callerKeys = []string{"name", "tokens", "certificates", "roles"}
	grantKeys  = []string{"role", "tenants", "services"}
)

// namePattern matches the name of a caller. It excludes the colon, so that no name
// equals that of an issuer's subject.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9._@/-]{1,128}$`)

const nameRule = "1 to 128 of the characters A-Z a-z 0-9 . _ @ / -"

// directory holds the callers of one token file. It is immutable.
type directory struct {
	digest       string // Of the file's text.
	callers      []Caller
	tokens       map[bucket][]hashedToken
	certificates map[string]int // the index of the caller that has the name
}

// hashedToken is a token's hash and the index of its caller.
type hashedToken struct {
	sum    [sha256.Size]byte
	caller int
}

// bucket is the first bytes of a hash, the key of the index.
type bucket [8]byte

func bucketOf(sum [sha256.Size]byte) bucket { return bucket(sum[:len(bucket{})]) }

// claimed records, while a file is read, which caller has each unique value.
type claimed struct {
	names, certificates map[string]int
	tokens              map[[sha256.Size]byte]int
}

// index builds the index of tokens.
func (c *claimed) index() map[bucket][]hashedToken {
	index := make(map[bucket][]hashedToken, len(c.tokens))
	for sum, caller := range c.tokens {
		index[bucketOf(sum)] = append(index[bucketOf(sum)], hashedToken{sum, caller})
	}
	return index
}

// parse reads a token file. The error joins a [reload.FileError] for each mistake, by
// line.
func parse(file string, text []byte) (*directory, error) {
	r := &reader{file: file}
	directory := r.directory(text)
	if len(r.faults) == 0 {
		return directory, nil
	}
	slices.SortStableFunc(r.faults, func(a, b error) int { return cmp.Compare(lineOf(a), lineOf(b)) })
	return nil, errors.Join(r.faults...)
}

func lineOf(err error) int {
	if fault, ok := errors.AsType[*reload.FileError](err); ok {
		return fault.Line
	}
	return 0
}

// directory reads the whole file.
func (r *reader) directory(text []byte) *directory {
	top, ok := r.document(text)
	if !ok {
		return nil
	}
	members := r.members(top, fileKeys...)
	if version, ok := r.text(members["version"]); ok && version != fileVersion {
		r.fail(members["version"], "is %q and must be %s", version, fileVersion)
	}
	if members["callers"].absent() {
		r.fail(members["callers"], "must name at least one caller")
	}
	c := claimed{map[string]int{}, map[string]int{}, map[[sha256.Size]byte]int{}}
	var callers []Caller
	for i, v := range r.list(members["callers"], maxCallers) {
		callers = append(callers, r.caller(v, i, &c))
	}
	return &directory{callers: callers, tokens: c.index(), certificates: c.certificates}
}

// caller reads one caller, the i-th of the file.
func (r *reader) caller(v value, i int, c *claimed) Caller {
	members := r.members(v, callerKeys...)
	name, ok := r.text(members["name"])
	if ok && !namePattern.MatchString(name) {
		r.fail(members["name"], "is %q and must be %s", name, nameRule)
	}
	if wellFormed(name) {
		r.fail(members["name"], "is a token: its hash belongs under tokens, and the name is in logs")
	}
	if ok {
		claim(r, members["name"], c.names, name, i)
	}
	tokens := r.list(members["tokens"], maxCredentials)
	certificates := r.list(members["certificates"], maxCredentials)
	if members["tokens"].absent() && members["certificates"].absent() {
		r.fail(members["tokens"], "is required, or else certificates")
	}
	for _, token := range tokens {
		r.token(token, i, c)
	}
	for _, certificate := range certificates {
		r.certificate(certificate, i, c)
	}
	return NewCaller(name, ByToken, r.grants(members["roles"])...)
}

// token reads the hash of a token. Its errors do not quote the value, which could be
// the token itself.
func (r *reader) token(v value, i int, c *claimed) {
	text, ok := r.text(v)
	if !ok {
		return
	}
	sum, ok := parseHash(text)
	if !ok {
		r.fail(v, "must be %s and 64 hexadecimal digits, as `lucius token new` prints it", hashPrefix)
		return
	}
	claim(r, v, c.tokens, sum, i)
}

// certificate reads the name of a client certificate.
func (r *reader) certificate(v value, i int, c *claimed) {
	text, ok := r.text(v)
	if !ok {
		return
	}
	kind, name, _ := strings.Cut(text, ":")
	if kind+":" != commonName && kind+":" != uriName || strings.TrimSpace(name) == "" {
		r.fail(v, "is %q and must be %s and the subject's common name, or %s and a URI of the subject", text, commonName, uriName)
		return
	}
	claim(r, v, c.certificates, text, i)
}

// grants reads the roles of a caller.
func (r *reader) grants(v value) []Grant {
	if v.absent() {
		r.fail(v, "must list at least one role")
	}
	var grants []Grant
	for _, v := range r.list(v, maxGrants) {
		before := len(r.faults)
		members := r.members(v, grantKeys...)
		role, _ := r.text(members["role"])
		grant := Grant{Role: Role(role)}
		grant.Tenants, grant.All = r.tenants(members["tenants"])
		if services := members["services"]; services.node != nil && services.absent() {
			r.fail(services, "must not be empty") // Only an absent list means all.
		}
		for _, service := range r.list(members["services"], MaxListed) {
			name, _ := r.text(service)
			grant.Services = append(grant.Services, name)
		}
		if err := grant.Validate(); err != nil && len(r.faults) == before {
			r.fail(v, "is not valid: %v", err)
		}
		grants = append(grants, grant)
	}
	return grants
}

// tenants reads a list of tenants, or the star.
func (r *reader) tenants(v value) (tenants []string, all bool) {
	if text, single := singleText(v); single && text == Everyone {
		return nil, true
	}
	if v.absent() {
		r.fail(v, "is required: a list of tenants, or %q for all", Everyone)
		return nil, false
	}
	for _, tenant := range r.list(v, MaxListed) {
		name, _ := r.text(tenant)
		tenants = append(tenants, name)
	}
	return tenants, false
}

// singleText returns the text of a value, if it is a single text.
func singleText(v value) (string, bool) {
	if v.absent() {
		return "", false
	}
	return (&reader{}).text(v)
}

// claim records that the i-th caller has the unique value.
func claim[K comparable](r *reader, v value, taken map[K]int, key K, i int) {
	if other, ok := taken[key]; ok {
		r.fail(v, "is the same as one of callers[%d]", other)
		return
	}
	taken[key] = i
}
