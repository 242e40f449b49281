package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// A token is TokenPrefix, 256 random bits and their CRC-32, both in base 32. The
// prefix and the checksum let scanners of source code recognise a leaked token with
// certainty; the checksum adds no protection.
const (
	// TokenPrefix begins every token.
	TokenPrefix = "lucius_"
	// tokenBytes is the number of random bytes in a token.
	tokenBytes = 32
	// hashPrefix names the hash in a token file.
	hashPrefix = "sha256:"
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

// checksum returns the CRC-32 of the secret, in seven characters.
func checksum(secret []byte) string {
	return tokenText.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(secret)))
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
