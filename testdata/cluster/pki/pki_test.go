package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"
)

func parse(t *testing.T, p Pair) *x509.Certificate {
	t.Helper()
	if _, err := tls.X509KeyPair(p.Cert, p.Key); err != nil {
		t.Fatalf("certificate and key: %v", err)
	}
	block, _ := pem.Decode(p.Cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificates(t *testing.T) {
	a, err := New("test")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.Cert) {
		t.Fatal("the authority's certificate is none")
	}
	server, err := a.Server("s", "10.0.0.1", "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"10.0.0.1", "kubernetes"} {
		if _, err := parse(t, server).Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if _, err := parse(t, server).Verify(x509.VerifyOptions{Roots: roots, DNSName: "10.0.0.2"}); err == nil {
		t.Error("good for an address that was not asked for")
	}
	client, err := a.Client("system:node:node-1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	c := parse(t, client)
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if c.Subject.CommonName != "system:node:node-1" || len(c.Subject.Organization) != 1 || c.Subject.Organization[0] != "system:nodes" {
		t.Errorf("subject is %v", c.Subject)
	}
	other, err := New("test")
	if err != nil {
		t.Fatal(err)
	}
	foreign := x509.NewCertPool()
	foreign.AppendCertsFromPEM(other.Cert)
	if _, err := c.Verify(x509.VerifyOptions{Roots: foreign, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("another cluster's authority accepts it")
	}
}

func TestKey(t *testing.T) {
	k, err := Key()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(k.Cert)
	if _, err := x509.ParsePKIXPublicKey(block.Bytes); err != nil {
		t.Error(err)
	}
	block, _ = pem.Decode(k.Key)
	if _, err := x509.ParseECPrivateKey(block.Bytes); err != nil {
		t.Error(err)
	}
}
