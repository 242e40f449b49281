package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// The limits of a JWT, in addition to the size of a token.
const (
	maxSubject = 256 // bytes
	maxKeyID   = 512 // bytes
)

// leeway is how far the issuer's clock may be off.
const leeway = time.Minute

// algorithms are the signature algorithms that a token may use: none uses a shared
// secret.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.EdDSA}

// minRSASignature is the length of a signature of a key of 2048 bits, in bytes: it is as
// long as the key.
const minRSASignature = 2048 / 8

// authenticate returns the caller of the token. The error is for the log, except
// [ErrIssuerUnavailable].
//
// Source: RFC 7519 and RFC 8725.
func (i *Issuer) authenticate(ctx context.Context, token string) (Caller, error) {
	// A token that is not signed with one of the algorithms does not parse.
	parsed, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return Caller{}, fmt.Errorf("parse: %w", err)
	}
	// The type, if there is one, must be that of an access token and not, for example,
	// of a logout token.
	signature := parsed.Signatures[0]
	header := signature.Header
	kind, typed := header.ExtraHeaders[jose.HeaderType]
	name, _ := kind.(string)
	name = strings.TrimPrefix(strings.ToLower(name), "application/")
	switch {
	case header.KeyID == "" || len(header.KeyID) > maxKeyID || typed && name != "jwt" && name != "at+jwt":
		return Caller{}, errors.New("its header has no key id, or one that is too long, or names another type of token")
	case strings.Contains("RS256 PS256", header.Algorithm) && len(signature.Signature) < minRSASignature:
		return Caller{}, errors.New("its RSA key is too short")
	}
	payload, err := i.verify(ctx, token)
	if err != nil {
		return Caller{}, err
	}
	var standard jwt.Claims
	claims := map[string]json.RawMessage{}
	if err := errors.Join(json.Unmarshal(payload, &standard), json.Unmarshal(payload, &claims)); err != nil {
		return Caller{}, fmt.Errorf("read the claims: %w", err)
	}
	if standard.Expiry == nil {
		return Caller{}, errors.New("it does not say when it expires")
	}
	expected := jwt.Expected{Issuer: i.cfg.URL, AnyAudience: jwt.Audience{i.cfg.Audience}, Time: time.Now()}
	if err := standard.ValidateWithLeeway(expected, leeway); err != nil {
		return Caller{}, err
	}
	if standard.Subject == "" || len(standard.Subject) > maxSubject ||
		strings.ContainsFunc(standard.Subject, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return Caller{}, errors.New("its subject is missing, too long, or not printable")
	}
	grants, err := readGrants(claims[i.cfg.RolesClaim])
	return NewCaller("oidc:"+standard.Subject, ByJWT, grants...), err
}

// verify returns the payload of a token that one of the issuer's keys has signed with one
// of the algorithms. The key set does not check the algorithm: the caller does. A key that
// the set does not have may be new, so it returns [ErrIssuerUnavailable] if the keys could
// not be fetched.
func (i *Issuer) verify(ctx context.Context, token string) ([]byte, error) {
	known, err := i.current(ctx)
	if err != nil {
		return nil, err
	}
	payload, err := known.keys.VerifySignature(ctx, token)
	if notFetched(err) && !errors.Is(err, errTooSoon) {
		return nil, fmt.Errorf("%w: %s", ErrIssuerUnavailable, Printable(err.Error()))
	}
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return payload, nil
}

// readGrants reads the claim of roles: a list of texts, or one text with spaces
// between them. It skips grants that [ParseGrant] refuses, so that an issuer may use
// roles that this server does not know; a skipped grant gives no right.
func readGrants(claim json.RawMessage) ([]Grant, error) {
	if len(claim) == 0 || string(claim) == "null" {
		return nil, nil
	}
	var texts []string
	if err := json.Unmarshal(claim, &texts); err != nil {
		var text string
		if err := json.Unmarshal(claim, &text); err != nil {
			return nil, errors.New("its roles are neither a list of texts nor a text")
		}
		texts = strings.Fields(text)
	}
	var grants []Grant
	for _, text := range texts[:min(len(texts), maxGrants)] {
		if grant, err := ParseGrant(text); err == nil {
			grants = append(grants, grant)
		}
	}
	return grants, nil
}
