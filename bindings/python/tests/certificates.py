"""certificates.py DIR: what the tests of TLS need, as PEM files: two authorities, and what the first has signed."""
import datetime
import ipaddress
import pathlib
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make(directory, name, signed_by=None):
    """NAME.pem and NAME.key, signed by another or by itself, which makes it an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, signer_key = signed_by or (subject, key)
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=signed_by is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(signer_key, hashes.SHA256())
    )
    (directory / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    # PKCS #8, which is what Java's bookie takes.
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / f"{name}.key").write_bytes(private)
    return subject, key


if __name__ == "__main__":
    to = pathlib.Path(sys.argv[1])
    to.mkdir()
    authority = make(to, "authority")
    make(to, "stranger")
    make(to, "bookie", authority)
    make(to, "client", authority)
